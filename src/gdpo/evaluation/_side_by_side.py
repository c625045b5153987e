"""Does work in threads that an interruption does not wait for."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, at_once: int, done: Callable[[int], None]
) -> list[R]:
    """What the work gives for each item, in their order.

    Once one fails, none is begun any more, those in progress are waited for, and the error is
    raised. An interruption ends at once: its threads end with the process, or with what they do.

    Args:
        work: Called in threads.
        items: What it is called with.
        at_once: Threads.
        done: Called here with 1 whenever one is done.
    """
    jobs: list[Future[R]] = [Future() for _ in items]
    left = iter(list(zip(jobs, items, strict=True)))  # next() of it is atomic
    for _ in range(min(at_once, len(jobs))):
        threading.Thread(target=_work_off, args=(left, work, jobs), daemon=True).start()
    try:
        for _ in _ended(jobs):
            done(1)
    except Exception:
        wait(jobs)
        raise
    finally:
        _cancel(jobs)
    return [job.result() for job in jobs]


def _work_off(
    left: Iterable[tuple[Future[R], T]], work: Callable[[T], R], jobs: Iterable[Future[R]]
) -> None:
    for job, item in left:
        if job.set_running_or_notify_cancel():
            try:
                job.set_result(work(item))
            except BaseException as error:  # noqa: BLE001  it is raised where the result is wanted
                _cancel(jobs)
                job.set_exception(error)


def _ended(jobs: Iterable[Future[R]]) -> Iterator[R]:
    """The results as they come. One that was cancelled has none, and another one an error."""
    for job in as_completed(jobs):
        if not job.cancelled():
            yield job.result()


def _cancel(jobs: Iterable[Future[R]]) -> None:
    for job in jobs:
        job.cancel()
