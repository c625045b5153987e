"""Tests on their way into the sandbox."""

import threading

from gdpo.sandbox import Asserts
from gdpo.sandbox._plan import plan


class Cyclic:
    """Garbage whose finalizer runs Python code, so that another thread may take over."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(2000))


def test_several_threads_may_bring_tests_at_a_time():
    """CPython before 3.12.2 fails now and then when two threads parse."""
    failed = []

    def work(number):
        for i in range(40):
            for _ in range(30):
                Cyclic()
            statements = tuple(
                f"assert f({number}, {i}, {k}) == {k * '(1 + '}1{k * ')'}" for k in range(20)
            )
            try:
                plan(Asserts(statements))
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
