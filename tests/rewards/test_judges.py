"""Rewards that are coroutine functions: judges elsewhere, which are slow, limited and fail."""

import asyncio
import logging
import time

import numpy as np
import pytest

from gdpo.rewards import Reward, Scorer, _scorer
from gdpo.rewards._judges import Judges


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    def quick(*, pause, **kwargs):
        return Judges(pause=pause / 100, **kwargs)

    monkeypatch.setattr(_scorer, "Judges", quick)


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


def test_judges_wait_side_by_side_within_the_limit_and_keep_the_order():
    service = Service()
    reward = Reward("judge", service.judge, 0, 1)
    quick = Reward("quick", lambda completion, _: int(completion) / 40, 0, 1)
    texts = [str(i) for i in range(40)]
    with Scorer([quick, reward], concurrency=7) as scorer:
        scores = scorer.score(texts, [{}] * 40)
    assert service.most == 7
    assert scores.values.tolist() == [[i / 40, 0.5] for i in range(40)]


def test_what_was_written_twice_is_asked_once():
    service = Service()
    with Scorer([Reward("judge", service.judge, 0, 1)]) as scorer:
        scorer.score(["a", "b", "a", "a"], [{"x": [1]}, {}, {"x": [1]}, {"x": [2]}])
    assert service.asked == {"a": 2, "b": 1}


def test_a_judge_that_fails_is_asked_again_and_then_counted():
    for fails, wanted in ((2, 0.5), (3, np.nan)):
        service = Service(fails)
        with Scorer([Reward("judge", service.judge, 0, 1)], retries=2) as scorer:
            scores = scorer.score(["a"], [{}])
        np.testing.assert_array_equal(scores.values, [[wanted]])
        assert service.asked == {"a": 3}
    assert scores.kinds("judge") == {"raised ConnectionError": 1}


def test_an_answer_that_is_no_reward_is_not_asked_for_again():
    service = Service()
    with Scorer([Reward("judge", service.judge, 0, 1)]) as scorer:
        scores = scorer.score(["long", "text", "none", "x"], [{}] * 4)
    assert [f.kind for f in scores.failures] == ["out of range", "not a number"]
    np.testing.assert_array_equal(scores.values[:, 0], [np.nan, np.nan, np.nan, 0.5])
    assert set(service.asked.values()) == {1}


async def sleepy(completion, reference):
    await asyncio.sleep(60)


def test_a_judge_that_never_answers_is_given_up_at_its_deadline():
    start = time.monotonic()
    with Scorer([Reward("judge", sleepy, 0, 1, deadline=0.1)], retries=1) as scorer:
        scores = scorer.score(["a", "b"], [{}, {}])
    assert scores.kinds("judge") == {"timed out": 2}
    assert time.monotonic() - start < 5


async def leaving(completion, reference):
    raise SystemExit(3)


async def its_own_timeout(completion, reference):
    raise TimeoutError


@pytest.mark.parametrize(
    ("function", "kind"), [(leaving, "raised SystemExit"), (its_own_timeout, "raised TimeoutError")]
)
def test_whatever_a_judge_raises_is_a_failure(function, kind):
    with Scorer([Reward("judge", function, 0, 1)], retries=0) as scorer:
        assert scorer.score(["a"], [{}]).kinds("judge") == {kind: 1}
        assert scorer.score(["a"], [{}]).kinds("judge") == {kind: 1}


def test_one_loop_serves_all_batches_so_that_a_client_stays_usable():
    loops = []

    async def judge(completion, reference):
        loops.append(asyncio.get_running_loop())
        return 0.0

    with Scorer([Reward("judge", judge, 0, 1)]) as scorer:
        scorer.score(["a"], [{}])
        scorer.score(["b"], [{}])
    assert loops[0] is loops[1]


def test_scoring_works_inside_a_loop_that_runs():
    async def notebook():
        with Scorer([Reward("judge", Service().judge, 0, 1)]) as scorer:
            return scorer.score(["a"], [{}]).values.tolist()

    assert asyncio.run(notebook()) == [[0.5]]


def test_progress_is_told_when_a_batch_takes_long_and_not_before(monkeypatch):
    from gdpo.rewards import _progress

    told = []

    async def slow(completion, reference):
        await asyncio.sleep(0.02 * int(completion))
        return 0.0

    with Scorer(
        [Reward("judge", slow, 0, 1)], progress=lambda *counts: told.append(counts)
    ) as scorer:
        scorer.score(["0", "1"], [{}, {}])
        assert told == []
        monkeypatch.setattr(_progress, "PATIENCE_S", 0.05)
        scorer.score([str(i) for i in range(6)], [{}] * 6)
    assert told[-1] == (6, 6)
    assert 1 < len(told) < 6


def test_without_a_terminal_progress_is_a_line_in_the_log(caplog):
    from gdpo.rewards._progress import Bar

    bar = Bar()
    with caplog.at_level(logging.INFO):
        for done in range(1, 11):
            bar(done, 10)
    assert [record.getMessage() for record in caplog.records] == ["scored 1 of 10 completions"]
