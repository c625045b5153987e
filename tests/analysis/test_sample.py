"""Which groups are shown: chosen by estimators that are called on no step that is not looked at."""

import numpy as np
import pytest
from tests.rollouts.readers import written

from gdpo.advantages import ESTIMATORS, gdpo, grpo
from gdpo.analysis import analyze, sample
from gdpo.rollouts.readers import read_rollout_files

STEPS = 40
called = []


def counted(rewards, weights):
    """GRPO, which remembers how often it was called."""
    called.append(len(rewards))
    return grpo(rewards, weights)


@pytest.fixture
def few(monkeypatch):
    """Room for so few groups that most steps are passed over."""
    monkeypatch.setattr(sample, "KEPT", 8)
    called.clear()


@pytest.fixture(scope="module")
def rewards():
    return np.random.default_rng(0).integers(0, 4, (STEPS, 3, 4, 2)).astype(float)


@pytest.fixture(scope="module")
def dump(tmp_path_factory, rewards):
    folder = tmp_path_factory.mktemp("dump")
    records = [
        {"step": t, "prompt": f"{t} {p}", "a": a, "b": b}
        for t, step in enumerate(rewards)
        for p, group in enumerate(step)
        for a, b in group.tolist()
    ]
    return written.lines(folder / "a.jsonl", records)


def sampled(dump, **options):
    return analyze(read_rollout_files(dump, rewards=["a", "b"]), sampled=True, **options)


def steps_of(analysis):
    return {int(group.table.steps[0]) for group in analysis.sample}


def test_estimators_that_are_only_shown_are_called_where_a_step_is_looked_at(
    few, dump, monkeypatch
):
    monkeypatch.setitem(ESTIMATORS, "gdpo", counted)
    done = sampled(dump, weights={"b": 0.0})  # no setting is replayed for a single reward
    # One or two groups a step: every step until there is no room, every second, and so on.
    assert steps_of(done) == {0, 16, 32}
    assert len(called) < STEPS / 2


def test_estimators_that_were_asked_for_see_every_step(few, dump):
    done = sampled(dump, replayed=["grpo", f"{__name__}:counted"])
    assert [groups for groups in called if groups != 6] == STEPS * [3]  # 6: it is tried out first
    assert done.replayed[1].steps == STEPS
    assert steps_of(done) == {0, 16, 32}


def test_a_run_without_room_shows_what_one_with_room_shows_of_the_same_steps(
    dump, rewards, monkeypatch
):
    every = {(group.table.steps[0], group.place): group for group in sampled(dump).sample}
    monkeypatch.setattr(sample, "KEPT", 8)
    for group in (found := sampled(dump).sample):
        step = int(group.table.steps[0])
        before = every[step, group.place]
        assert group.rows == before.rows
        for name, estimator in (("grpo", grpo), ("gdpo", gdpo)):
            prompt = group.rows[0] % rewards[0, ..., 0].size // len(group.rows)
            expected = estimator(rewards[step], [1, 1])[prompt]
            np.testing.assert_allclose(group.advantages[name], expected, atol=1e-12)
            np.testing.assert_array_equal(before.advantages[name], group.advantages[name])
    assert len(found) > 4
