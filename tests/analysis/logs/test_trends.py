"""What means and standard deviations alone tell: trends, and shares of weight × std."""

import numpy as np
import pytest

from gdpo.analysis.logs.sources import Log
from gdpo.analysis.logs.trends import logged_runs, trends_of
from gdpo.analysis.trend import trend


def noise(rng, count, likeness):
    """Noise of variance 1 in which neighbours have this correlation."""
    values = np.empty(count)
    values[0] = rng.standard_normal()
    for i, fresh in enumerate(rng.standard_normal(count - 1), 1):
        values[i] = likeness * values[i - 1] + np.sqrt(1 - likeness**2) * fresh
    return values


@pytest.mark.parametrize(("likeness", "most"), [(0.0, 0.08), (0.6, 0.11), (0.8, 0.14)])
def test_noise_is_rarely_a_trend_even_if_neighbouring_steps_are_alike(likeness, most):
    rng = np.random.default_rng(0)
    found = [trend(noise(rng, 60, likeness)) for _ in range(300)]
    assert np.mean([abs(change) > margin for change, margin in found]) <= most


def test_a_reward_that_rises_early_and_then_stays_has_a_trend():
    rng = np.random.default_rng(1)
    rising = 4 * (1 - np.exp(-np.arange(40) / 8)) + 0.3 * rng.standard_normal(40)
    change, margin = trend(rising)
    assert change == pytest.approx(np.mean(rising[27:]) - np.mean(rising[:13]))
    assert 0 < margin < change


def test_few_steps_have_no_trend_and_a_constant_has_an_exact_one():
    assert np.isnan(trend(np.arange(14.0))).all()
    assert trend(np.full(40, 0.7)) == (0.0, 0.0)


def run_of(steps=40, **rewards):
    """Each reward is a pair: its mean and its standard deviation at every step."""
    log = Log("somewhere", "trainer_state.json")
    for step in range(steps):
        row = {"step": step}
        for name, (mean, std) in rewards.items():
            row[f"rewards/{name}/mean"] = mean(step) if callable(mean) else mean
            row[f"rewards/{name}/std"] = std(step) if callable(std) else std
        log.add_row(row)
    (run,) = logged_runs([log])
    return run


def test_the_shares_are_weight_times_std_over_their_sum():
    found = trends_of(run_of(a=(0.0, 3.0), b=(0.0, 1.0)), weights={"a": -0.5, "b": 1.0})
    a, b = found.rewards
    assert (a.std_share, b.std_share) == (pytest.approx(0.6), pytest.approx(0.4))
    assert (a.weight_share, b.weight_share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_the_ends_are_the_first_and_the_last_tenth():
    (found,) = trends_of(run_of(a=(lambda step: step, lambda step: 40 - step)), weights={}).rewards
    assert (found.first, found.last, found.first_std, found.last_std) == (1.5, 37.5, 38.5, 2.5)
    assert found.std == 20.5


def test_a_run_without_any_of_the_named_rewards_is_left_out():
    logs = [run_of(**{name: (0.0, 1.0)}).log for name in "ab"]
    (run,) = logged_runs(logs, ["b"])
    assert [*run.rewards] == ["b"]


def logged(**columns):
    log = Log("somewhere", "metrics.jsonl")
    for step in range(20):
        log.add_row({"step": step, **columns})
    (run,) = logged_runs([log])
    return trends_of(run, weights={})


def test_numbers_that_gdpo_logged_are_found():
    columns = {"rewards/a/mean": 1.0, "rewards/a/influence_share": 0.97}
    columns |= {"rewards/a/zero_variance_groups": 0.25, "diagnostics/warnings": 1.0}
    found = logged(**columns)
    (reward,) = found.rewards
    assert (reward.influence_share, reward.zero_variance_groups) == (pytest.approx(0.97), 0.25)
    assert found.run.batch["warnings"].tolist() == [1.0] * 20


@pytest.mark.parametrize("key", ["frac_reward_zero_std", "gdpo/zero_advantage_groups"])
def test_groups_without_advantage_are_found(key):
    found = logged(**{"rewards/a/mean": 1.0, "rewards/a/std": 1.0, key: 0.95})
    assert found.run.batch["zero_advantage_groups"].tolist() == [0.95] * 20


def test_the_std_within_groups_is_used_if_all_rewards_have_it():
    columns = {"gdpo/a/mean": 1.0, "gdpo/a/group_std": 3.0, "gdpo/b/mean": 1.0}
    found = logged(**columns, **{"gdpo/b/group_std": 1.0})
    assert found.within_groups
    assert [reward.std_share for reward in found.rewards] == [pytest.approx(0.75), 0.25]
