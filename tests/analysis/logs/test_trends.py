"""What means and standard deviations alone tell: trends, constant and possibly ignored rewards."""

import numpy as np
import pytest

from gdpo.analysis.logs.sources import Log
from gdpo.analysis.logs.trends import logged_runs, trend, trends_of


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


def test_an_interval_that_ignores_the_likeness_of_neighbours_would_be_wrong_half_of_the_time():
    """The guard of the test above: the same noise, with n instead of n_e values."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        values = noise(rng, 60, 0.8)
        change = np.mean(values[40:]) - np.mean(values[:20])
        wrong += abs(change) > 2 * np.std(values) * np.sqrt(2 / 20)
    assert wrong / 300 > 0.4


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
        log.add_rows([row])
    (run,) = logged_runs([log])
    return run


def told(run, weights=None, low=None, high=None):
    found = trends_of(run, weights=weights or {}, low=low or {}, high=high or {})
    return {finding.rewards: (finding.kind, finding.severity) for finding in found.findings}, found


def test_the_shares_are_weight_times_std_over_their_sum():
    run = run_of(a=(0.0, 3.0), b=(0.0, 1.0))
    _, found = told(run, {"a": -0.5, "b": 1.0})
    a, b = found.rewards
    assert (a.std_share, b.std_share) == (pytest.approx(0.6), pytest.approx(0.4))
    assert (a.weight_share, b.weight_share) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("std", "severity"), [(0.05, "warning"), (0.06, "note"), (0.14, "note"), (0.15, None)]
)
def test_a_reward_may_have_less_effect_if_its_share_of_weight_times_std_is_small(std, severity):
    """s / (1 + s) is below an eighth for s < 1/7, and below 5 % for s < 1/19."""
    findings, _ = told(run_of(loud=(0.0, 1.0), quiet=(0.0, std)))
    assert findings == ({("quiet",): ("ignored", severity)} if severity else {})


def test_a_reward_that_ended_at_its_good_end_needs_no_effect():
    run = run_of(loud=(0.0, 1.0), nearly=(0.97, 0.04))
    assert told(run)[0] == {("nearly",): ("ignored", "warning")}
    known = {"low": {"nearly": 0}, "high": {"nearly": 1}}
    assert told(run, **known)[0] == {}
    assert told(run, {"nearly": -1}, **known)[0] == {("nearly",): ("ignored", "warning")}
    fallen = run_of(loud=(0.0, 1.0), nearly=(0.03, 0.04))
    assert told(fallen, {"nearly": -1}, **known)[0] == {}


def test_a_constant_reward_is_learned_at_the_end_that_its_weight_asks_for():
    known = {"low": {"still": 0}, "high": {"still": 1}}
    run = run_of(loud=(0.0, 1.0), still=(1.0, 0.0))
    assert told(run, {"still": 1}, **known)[0] == {("still",): ("saturated", "note")}
    assert told(run, {"still": -1}, **known)[0] == {("still",): ("out_of_reach", "warning")}


def test_a_larger_weight_makes_up_for_a_small_std():
    run = run_of(loud=(0.0, 1.0), quiet=(0.0, 0.1))
    assert told(run)[0].keys() == {("quiet",)}
    assert not told(run, {"quiet": 10})[0]


def test_a_reward_without_weight_is_left_out():
    assert not told(run_of(loud=(0.0, 1.0), quiet=(1.0, 0.0)), {"quiet": 0})[0]


FALLEN = (lambda step: min(1, step / 20), lambda step: max(0.0, 0.5 - step / 40))


@pytest.mark.parametrize(
    ("reward", "low", "high", "kind", "severity"),
    [
        ((1.0, 0.0), None, None, "constant", "warning"),
        ((0.1, 4e-9), None, None, "constant", "warning"),
        (FALLEN, None, None, "constant", "note"),
        (FALLEN, 0, 1, "saturated", "note"),
        ((0.0, 0.0), 0, 1, "out_of_reach", "warning"),
        ((0.5, 0.001), 0, 1, "constant", "note"),
    ],
)
def test_a_reward_whose_std_is_near_0_at_the_end_is_constant(reward, low, high, kind, severity):
    known = {} if low is None else {"low": {"still": low}, "high": {"still": high}}
    findings, _ = told(run_of(loud=(0.0, 1.0), still=reward), **known)
    assert findings == {("still",): (kind, severity)}


def test_a_std_that_rises_again_at_the_end_is_not_constant():
    again = (0.5, lambda step: 0.5 if step < 10 or step == 38 else 0.0)
    assert not told(run_of(loud=(0.0, 0.3), still=again))[0]


def logged(**columns):
    log = Log("somewhere", "metrics.jsonl")
    for step in range(20):
        log.add_rows([{"step": step, **columns}])
    (run,) = logged_runs([log])
    return run


def test_influence_that_gdpo_logged_is_used_instead_of_the_std():
    columns = {f"rewards/{n}/{field}": 1.0 for n in "ab" for field in ("mean", "std")}
    columns |= {"rewards/a/influence_share": 0.97, "rewards/b/influence_share": 0.03}
    columns |= {"rewards/a/zero_variance_groups": 0.25, "diagnostics/warnings": 1.0}
    findings, found = told(logged(**columns))
    assert findings == {("b",): ("ignored", "warning")}
    (finding,) = found.findings
    assert finding.evidence == pytest.approx({"influence_share": 0.03, "weight_share": 0.5})
    assert found.rewards[0].zero_variance_groups == 0.25
    assert found.run.batch["warnings"].tolist() == [1.0] * 20


@pytest.mark.parametrize(
    ("share", "kind", "severity"),
    [
        (-0.06, "reversed", "warning"),
        (-0.04, "ignored", "warning"),
        (0.12, "ignored", "note"),
        (0.13, None, None),
    ],
)
def test_the_logged_share_has_the_limits_of_the_diagnosis(share, kind, severity):
    columns = {f"rewards/{n}/{field}": 1.0 for n in "ab" for field in ("mean", "std")}
    columns |= {"rewards/a/influence_share": 1 - share, "rewards/b/influence_share": share}
    assert told(logged(**columns))[0] == ({("b",): (kind, severity)} if kind else {})


@pytest.mark.parametrize("key", ["frac_reward_zero_std", "gdpo/zero_advantage_groups"])
def test_groups_without_advantage_at_the_end_are_told(key):
    findings, _ = told(logged(**{"rewards/a/mean": 1.0, "rewards/a/std": 1.0, key: 0.95}))
    assert findings == {(): ("no_signal", "warning")}


def test_the_std_within_groups_is_used_if_all_rewards_have_it():
    columns = {"gdpo/a/mean": 1.0, "gdpo/a/group_std": 3.0, "gdpo/b/mean": 1.0}
    _, found = told(logged(**columns, **{"gdpo/b/group_std": 1.0}))
    assert found.within_groups
    assert [reward.std_share for reward in found.rewards] == [pytest.approx(0.75), 0.25]
