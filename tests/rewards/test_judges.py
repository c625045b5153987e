"""Coroutine rewards: judges that are slow, limited in number, and fail."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.refusals import reward_error

from gdpo.rewards import Example, Reward, Scorer, calls
from gdpo.rewards import scorer as scoring
from gdpo.rewards.calls import score_one
from gdpo.testing import check_reward


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(calls, "_PAUSE_S", 0.01)


class Service:
    """Counts how many ask at the same time, and how often each text was asked."""

    def __init__(self, fails=0):
        self.now = self.most = 0
        self.asked = {}
        self.fails = fails

    async def judge(self, completion, reference):
        self.asked[completion] = self.asked.get(completion, 0) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.01)
            if self.asked[completion] <= self.fails:
                raise ConnectionError("busy")
            return {"long": 1.5, "text": "good", "none": None}.get(completion, 0.5)
        finally:
            self.now -= 1


def judged_by(function, *, deadline=None, **options):
    return Scorer([Reward("judge", function, 0, 1, deadline=deadline)], **options)


def score(scorer, *texts):
    """Score texts without a reference."""
    return scorer.score(list(texts), [{}] * len(texts))


def test_judges_wait_side_by_side_within_the_limit_and_keep_the_order():
    service = Service()
    reward = Reward("judge", service.judge, 0, 1)
    quick = Reward("quick", lambda completion, _: int(completion) / 40, 0, 1)
    texts = [str(i) for i in range(40)]
    with Scorer([quick, reward], concurrency=7) as scorer:
        scores = score(scorer, *texts)
    assert service.most == 7
    assert scores.values.tolist() == [[i / 40, 0.5] for i in range(40)]


def test_what_was_written_twice_is_asked_once():
    service = Service()
    with judged_by(service.judge) as scorer:
        scorer.score(["a", "b", "a", "a"], [{"x": [1]}, {}, {"x": [1]}, {"x": [2]}])
    assert service.asked == {"a": 2, "b": 1}


def test_a_judge_that_fails_is_asked_again_and_then_counted():
    for fails, wanted in ((2, 0.5), (3, np.nan)):
        service = Service(fails)
        with judged_by(service.judge, retries=2) as scorer:
            scores = score(scorer, "a")
        assert_array_equal(scores.values, [[wanted]])
        assert service.asked == {"a": 3}
    assert scores.kinds("judge") == {"raised ConnectionError": 1}


def test_an_answer_that_is_no_reward_is_not_asked_for_again():
    service = Service()
    with judged_by(service.judge) as scorer:
        scores = score(scorer, "long", "text", "none", "x")
    assert [f.kind for f in scores.failures] == ["out of range", "not a number"]
    assert_array_equal(scores.values[:, 0], [np.nan, np.nan, np.nan, 0.5])
    assert set(service.asked.values()) == {1}


async def sleepy(completion, reference):
    await asyncio.sleep(60)


def test_a_judge_that_never_answers_is_given_up_at_its_deadline():
    with judged_by(sleepy, deadline=0.1, retries=1) as scorer:
        scores = score(scorer, "a", "b")
    assert scores.kinds("judge") == {"timed out": 2}
    assert all("0.1 s" in failure.message for failure in scores.failures)


async def leaving(completion, reference):
    raise SystemExit(3)


async def its_own_timeout(completion, reference):
    raise TimeoutError


async def cancelled_inside(completion, reference):
    raise asyncio.CancelledError


async def cancelling_itself(completion, reference):
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def cancelling_itself_at_the_end(completion, reference):
    asyncio.current_task().cancel()
    return 0.5


class OfItsOwn(BaseException):
    pass


class Unreadable(OfItsOwn):
    def __str__(self):
        raise OfItsOwn


class NoNumber:
    def __float__(self):
        raise OfItsOwn


async def raising_its_own(completion, reference):
    raise OfItsOwn


async def raising_what_has_no_text(completion, reference):
    raise Unreadable


async def giving_what_raises(completion, reference):
    return NoNumber()


async def closing(completion, reference):
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (leaving, "raised SystemExit"),
        (its_own_timeout, "raised TimeoutError"),
        (cancelled_inside, "raised CancelledError"),
        (cancelling_itself, "raised CancelledError"),
        (cancelling_itself_at_the_end, "raised CancelledError"),
        (raising_its_own, "raised OfItsOwn"),
        (raising_what_has_no_text, "raised Unreadable"),
        (giving_what_raises, "raised OfItsOwn"),
        (closing, "raised GeneratorExit"),
    ],
)
def test_whatever_a_judge_raises_is_a_failure(function, kind):
    async def judge(completion, reference):
        return 0.25 if completion == "b" else await function(completion, reference)

    with judged_by(judge, retries=0) as scorer:
        for _ in range(2):
            scores = score(scorer, "a", "b")
            assert scores.kinds("judge") == {kind: 1}
            assert_array_equal(scores.values[:, 0], [np.nan, 0.25])
    for _ in range(2):  # the loop that runs it outlives it
        assert score_one(Reward("judge", function, 0, 1), "a", {}).kind == kind


def interrupting_at_once(completion, reference):
    raise KeyboardInterrupt


async def interrupting(completion, reference):
    interrupting_at_once(completion, reference)


@pytest.mark.parametrize("function", [interrupting, interrupting_at_once])
def test_an_interrupt_is_no_failure_of_a_reward(function):
    with judged_by(function) as scorer, pytest.raises(KeyboardInterrupt):
        score(scorer, "a")
    with judged_by(Service().judge) as scorer:
        assert score(scorer, "a").values.tolist() == [[0.5]]


def test_judges_are_cancelled_where_their_batch_is_interrupted():
    cancelled = threading.Event()

    async def judge(completion, reference):
        main = threading.main_thread().ident
        while sys._current_frames()[main].f_code.co_name != "wait":  # for the batch
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with judged_by(judge) as scorer, pytest.raises(KeyboardInterrupt):
        score(scorer, "a")
    assert cancelled.wait(10)


def test_a_judge_that_stops_the_loop_does_not_hold_the_others():
    async def judge(completion, reference):
        if completion == "stops":
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return 0.5

    with judged_by(judge, retries=0) as scorer:
        assert score(scorer, "a", "stops", "b").values.tolist() == [[0.5]] * 3


@pytest.mark.slow
def test_a_judge_that_goes_on_though_it_is_cancelled_does_not_hold_the_batch():
    scored = threading.Event()
    asked = []

    async def judge(completion, reference):
        asked.append(completion)
        for _ in range(600 if completion == "goes on" else 0):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)
            if scored.is_set():
                break
        return 0.5

    with judged_by(judge, deadline=1, retries=2) as scorer:
        scores = score(scorer, "a", "goes on", "b")
    scored.set()
    assert_array_equal(scores.values[:, 0], [0.5, np.nan, 0.5])
    (failure,) = scores.failures
    assert failure.kind == "timed out"
    assert "left running" in failure.message
    assert asked.count("goes on") == 1


def test_one_loop_serves_every_call_of_the_process_so_that_a_client_stays_usable():
    loops = []

    async def judge(completion, reference):
        loops.append(asyncio.get_running_loop())
        return 0.0

    reward = Reward("judge", judge, 0, 1)
    score_one(reward, "a", {})
    for _ in range(2):
        with Scorer([reward]) as scorer:
            score(scorer, "a")
            score(scorer, "b")
    assert len(loops) == 5
    assert len(set(loops)) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")  # of forks
def test_a_process_that_was_forked_has_a_loop_of_its_own():
    reward = Reward("judge", Service().judge, 0, 1)
    assert score_one(reward, "a", {}) == 0.5
    pid = os.fork()
    if pid == 0:
        os._exit(int(score_one(reward, "a", {}) != 0.5))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def blocks(completion, reference):
    if completion == "blocks":
        time.sleep(3)
    return 0.5


@pytest.mark.slow
def test_a_coroutine_that_blocks_beyond_its_deadline_has_timed_out():
    with judged_by(blocks, deadline=2, retries=0) as scorer:
        scores = score(scorer, "blocks")
        assert score(scorer, "a").values.tolist() == [[0.5]]
    (failure,) = scores.failures
    assert failure.kind == "timed out"
    assert "event loop" in failure.message
    assert "time.sleep" in failure.message


def test_after_a_coroutine_that_blocks_was_interrupted_the_next_one_runs():
    ended = threading.Event()

    async def endless(completion, reference):
        ended.wait(60)
        return 0.0

    reward = Reward("endless", endless, 0, 1, (Example("a", {}, 0.0),))
    with reward_error(r"0\.1 s"):
        check_reward(reward, seconds=0.1)
    assert score_one(Reward("judge", Service().judge, 0, 1), "a", {}) == 0.5
    ended.set()


def test_a_judge_that_waits_for_another_without_await_is_told_so():
    other = Reward("other", Service().judge, 0, 1)

    async def judge(completion, reference):
        with Scorer([other]) as scorer:
            return scorer.score([completion], [reference]).values[0, 0]

    failure = score_one(Reward("judge", judge, 0, 1), "a", {})
    assert failure.kind == "raised RewardError"
    assert "`await`" in failure.message
    assert "asyncio.to_thread" in failure.message


def test_scoring_works_inside_a_loop_that_runs():
    async def notebook():
        with judged_by(Service().judge) as scorer:
            return score(scorer, "a").values.tolist()

    assert asyncio.run(notebook()) == [[0.5]]


def test_progress_is_told_when_a_batch_takes_long_and_not_before(monkeypatch):
    told = []

    async def slow(completion, reference):
        await asyncio.sleep(1.5 * (int(completion) > 2))
        return 0.0

    with judged_by(slow, progress=lambda *counts: told.append(counts)) as scorer:
        score(scorer, "0", "1")
        assert told == []
        monkeypatch.setattr(scoring, "_PATIENCE_S", 1.0)
        monkeypatch.setattr(scoring, "_SHOW_EVERY_S", -1.0)
        score(scorer, *map(str, range(6)))
    assert told == [(4, 6), (5, 6), (6, 6)]


@pytest.mark.parametrize(
    ("every", "wanted"), [(-1.0, [(1, 4), (2, 4), (3, 4), (4, 4)]), (1e9, [(1, 4), (4, 4)])]
)
def test_progress_of_quick_rewards_is_told_now_and_then(monkeypatch, every, wanted):
    monkeypatch.setattr(scoring, "_PATIENCE_S", -1.0)
    monkeypatch.setattr(scoring, "_SHOW_EVERY_S", every)
    told = []
    quick = Reward("quick", lambda text, _: float(text) / 9, 0, 1)
    with Scorer([quick], progress=lambda *counts: told.append(counts)) as scorer:
        score(scorer, "0", "1", "2", "3")
    assert told == wanted


def test_without_a_terminal_progress_is_a_line_in_the_log(caplog):
    bar = scoring._Bar()
    with caplog.at_level(logging.INFO):
        for done in range(1, 11):
            bar(done, 10)
    (line,) = caplog.messages
    assert "1 of 10" in line
