from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.report.runs import experiment_of

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.comparison import further, headline
from gdpo.lab.experiments.reading import ComparedRun, Measured


def unit(name):
    return Measured(name, 0.0, 1.0, 1.0)


FORMAT = unit("format")
CORRECTNESS = Measured("correctness", -3.0, 3.0, 1.0)
BOTH = (FORMAT, CORRECTNESS)


def said(found):
    """Return the conclusion and the sentence after it."""
    return f"{headline(found)} {further(found)}"


PAIRS = [(label, seed) for label in ("grpo", "gdpo") for seed in range(5)]


def run(label, seed, state="finished", why="", **means):
    curves = {name: np.array(values, dtype=float) for name, values in means.items()}
    return ComparedRun(label, seed, Path(f"{label}/{seed}"), state, why, curves)


def analysed(runs, *, rewards=(FORMAT,), total_steps=100):
    return analyse(experiment_of(Path(), runs, rewards=rewards, total_steps=total_steps))


def rising(final, *, at=50):
    """Jumps to its final value after a step."""
    return [0.1] * at + [final] * (100 - at)


def apart(seeds=5, *, gap=0.3):
    """Return runs where gdpo ends `gap` higher with every seed, and only gdpo reaches 80 %."""
    return [
        *(run("grpo", s, format=rising(0.55 + 0.01 * s)) for s in range(seeds)),
        *(run("gdpo", s, format=rising(0.55 + gap + 0.012 * s)) for s in range(seeds)),
    ]


def test_an_estimator_that_ends_higher_with_every_seed_is_reported_with_its_interval():
    found = analysed(apart())
    (d,) = found.differences
    assert d.final.value == pytest.approx(0.304)
    assert 0.29 < d.final.low < d.final.value < d.final.high < 0.32
    assert d.p_value == d.p_adjusted == d.p_floor == pytest.approx(1 / 126)
    assert d.p_time == pytest.approx(1 / 126)
    assert not found.exploratory
    assert further(found) == ""


def reaching(levels, **at):
    """Return a run for each level and label; `at` gives the step after which a label reaches it."""
    return [
        run(label, s, format=rising(level, at=step + s))
        for label, step in at.items()
        for s, level in enumerate(levels)
    ]


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (
            apart(),
            "gdpo ends 0.304 higher than grpo in format (95 % interval 0.300 to 0.308, 5 seeds, "
            "corrected p = 0.0079).",
        ),
        (
            apart(gap=-0.3),
            "gdpo ends 0.296 lower than grpo in format (95 % interval 0.292 to 0.300, 5 seeds, "
            "corrected p = 0.0079).",
        ),
        (
            apart(12),
            "gdpo ends 0.311 higher than grpo in format (95 % interval 0.306 to 0.316, 12 seeds, "
            "corrected p < 0.001).",
        ),
        (
            apart(3),
            "No difference between gdpo and grpo was found with 3 seeds; at least 5 seeds are "
            "needed to show one.",
        ),
        (
            apart(4),
            "No difference between gdpo and grpo was found with 4 seeds; at least 5 seeds are "
            "needed to show one.",
        ),
        (
            reaching([0.90, 0.91, 0.92, 0.93, 0.94], grpo=60, gdpo=20),
            "gdpo reaches 80 % of the range of format sooner than grpo (median step 27 versus "
            "step 67, 5 seeds, corrected p = 0.0079).",
        ),
        (
            reaching([1.0] * 5, grpo=60, gdpo=20),
            "gdpo reaches 80 % of the range of format sooner than grpo (median step 26 versus "
            "step 66, 5 seeds, corrected p = 0.0079).",
        ),
        (
            reaching([1.0] * 5, grpo=0, gdpo=0),
            "No difference between gdpo and grpo was found with 5 seeds.",
        ),
        (apart()[:5], "grpo ends format at 0.570."),
        (apart()[:1], "grpo ends format at 0.550."),
        ([run("grpo", 0)], "No run of grpo has a step yet."),
    ],
)
def test_the_conclusion_is_one_sentence(runs, sentence):
    assert headline(analysed(runs)) == sentence


def test_outcomes_hold_the_figures_of_each_estimator():
    grpo, gdpo = analysed(apart()).outcomes
    assert (grpo.label, grpo.reached, grpo.runs, grpo.failed) == ("grpo", 0, 5, 0)
    assert grpo.final.value == pytest.approx(0.57)
    assert (grpo.final.low, grpo.final.high) == pytest.approx((0.55, 0.59))
    np.testing.assert_allclose(grpo.finals, [0.55, 0.56, 0.57, 0.58, 0.59])
    assert np.isnan(grpo.survival.median.value)
    assert gdpo.reached == 5
    assert gdpo.best.value == pytest.approx(0.874)
    assert gdpo.survival.median.value == 55


def test_three_seeds_are_exploratory_and_cannot_go_below_a_tenth():
    found = analysed(apart(3))
    assert found.exploratory
    assert found.differences[0].p_value == pytest.approx(0.1)
    assert found.differences[0].p_time == pytest.approx(0.1)
    assert np.isnan(found.outcomes[0].final.low), "no interval of 3 seeds holds what it says"
    assert analysed(apart()[:1]).exploratory


def test_a_difference_in_the_other_direction_is_named_in_the_second_sentence():
    runs = [
        run(label, s, format=rising(0.5 + f + 0.01 * s), correctness=rising(c + 0.02 * s))
        for label, f, c in (("grpo", 0.0, 2.0), ("gdpo", 0.4, 1.0))
        for s in range(5)
    ]
    found = analysed(runs, rewards=BOTH)
    assert [d.reward for d in found.differences] == ["format", "correctness"]
    assert [d.p_adjusted for d in found.differences] == pytest.approx([2 / 126] * 2)
    assert "higher than grpo in format (" in headline(found)
    assert headline(found).endswith("corrected p = 0.016).")
    assert further(found) == "Also: gdpo lower in correctness."


def test_several_estimators_and_rewards_are_corrected_together():
    rng = np.random.default_rng(1)
    runs = [
        run(label, s, format=rising(shift + 0.01 * rng.random()), correctness=rising(rng.random()))
        for label, shift in (("grpo", 0.5), ("gdpo", 0.9), ("rloo", 0.5), ("dvao", 0.5))
        for s in range(5)
    ]
    found = analysed(runs, rewards=BOTH)
    assert len(found.differences) == 6
    first = found.differences[0]
    assert (first.label, first.reward, first.baseline) == ("gdpo", "format", "grpo")
    assert first.p_adjusted == pytest.approx(6 * first.p_value)
    assert all(d.p_adjusted >= d.p_value for d in found.differences)
    # With this many comparisons, 5 seeds cannot show even a difference without any overlap.
    many = [
        replace(r, label=f"{r.label}_{i}") for i in range(8) for r in apart() if r.label == "gdpo"
    ]
    crowded = analysed([*apart(), *many])
    assert min(d.p_adjusted for d in crowded.differences) == pytest.approx(9 / 126)
    assert "at least 6 seeds" in headline(crowded)
    assert "from grpo" in headline(crowded)


def test_failed_runs_count_with_what_they_reached():
    runs = apart()
    runs[0] = run("grpo", 0, "failed", "out of memory", format=[0.3] * 20)
    runs[6] = run("gdpo", 1, "failed", format=[0.2] * 7)
    runs[7] = run("gdpo", 2, "failed", "no GPU")
    found = analysed(runs)
    grpo, gdpo = found.outcomes
    assert (grpo.runs, grpo.failed) == (5, 1)
    assert grpo.finals[0] == pytest.approx(0.3)
    assert (gdpo.runs, gdpo.failed, gdpo.reached) == (4, 1, 3)
    assert np.isnan(gdpo.finals[2])
    assert found.differences[0].pairs == 4
    assert found.exploratory
    assert gdpo.survival.share[-1] == 0, "the run that failed at step 7 was no longer at risk"


def test_a_run_that_failed_after_its_last_step_did_not_fail():
    runs = [run("grpo", 0, "failed", "disk full", format=[0.5] * 100)]
    assert analysed(runs).outcomes[0].failed == 0


def test_an_experiment_that_has_just_begun_says_so():
    runs = [run(label, s, "waiting") for label, s in PAIRS]
    found = analysed(runs)
    assert found.outcomes[0].runs == found.differences[0].pairs == 0
    assert np.isnan([found.differences[0].p_value, *found.outcomes[0].survival.share]).all()
    assert headline(found).startswith("No seed has ended for both grpo and another")
    runs[0] = run("grpo", 0, "running", format=[0.9] * 3)
    runs[5] = run("gdpo", 0, "running", format=[0.2] * 40)
    found = analysed(runs)
    assert found.outcomes[0].reached == 0, "nothing is reached in fewer steps than the window"
    assert found.outcomes[1].final.value == pytest.approx(0.2)
    assert found.differences[0].pairs == 0, "runs in progress are not compared"


def test_two_runs_that_have_ended_are_a_pair_without_an_interval():
    runs = [run("grpo", 0, format=[0.9] * 100), run("gdpo", 0, format=[0.2] * 100)]
    runs += [run("grpo", 1, format=[0.9] * 100), run("gdpo", 1, "running", format=[0.9] * 40)]
    (d,) = analysed(runs).differences
    assert d.pairs == 1
    assert d.final.value == pytest.approx(-0.7)
    assert np.isnan(d.final.low)
    assert d.p_value == d.p_floor == 1


def test_runs_that_are_all_alike_from_the_first_step_on():
    runs = [run(label, s, format=[1.0] * 100) for label, s in PAIRS]
    found = analysed(runs)
    (d,) = found.differences
    assert (d.final.value, d.p_value, d.p_time) == (0.0, 1.0, 1.0)
    assert np.isnan(d.final.low)
    assert found.outcomes[0].survival.median.value == 5
    assert d.constant


def test_runs_of_one_step_can_reach_it():
    runs = [run(label, s, format=[1.0]) for label, s in PAIRS]
    found = analysed(runs, total_steps=1)
    assert found.outcomes[0].survival.median.value == 1


def test_seeds_are_paired_by_number_and_only_those_of_both_labels():
    runs = [
        *(run("grpo", s, format=rising(0.1 * s)) for s in (0, 1, 2, 3, 4, 5, 6)),
        *(run("gdpo", s, format=rising(0.1 * s + 0.05)) for s in (6, 5, 4, 3, 2)),
    ]
    (d,) = analysed(runs).differences
    assert d.pairs == 5
    assert d.final.value == pytest.approx(0.05)
    other = [replace(r, seed=r.seed + 3) if r.label == "gdpo" else r for r in runs]
    found = analysed(other)
    assert found.differences[0].pairs == 2
    assert found.exploratory, "five seeds each, but not in common"


def test_a_reward_that_applied_to_no_step_is_left_out_of_its_own_comparison_only():
    runs = [
        run(label, s, format=rising(0.9 - 0.01 * s), correctness=[np.nan] * 100)
        for label, s in PAIRS
    ]
    found = analysed(runs, rewards=BOTH)
    format_d, correctness_d = found.differences
    assert correctness_d.pairs == 0
    assert np.isnan([correctness_d.p_value, correctness_d.p_adjusted]).all()
    assert format_d.p_adjusted == format_d.p_value, "what cannot be asked is not counted"


def test_an_interval_of_a_difference_ends_where_the_reward_does():
    runs = [
        run(label, s, format=rising(v))
        for label, v in (("grpo", 0.0), ("gdpo", 1.0))
        for s, v in enumerate([v, v, 0.5])
    ]
    (d,) = analysed(runs).differences
    assert d.final.high == 1.0


def test_the_order_of_seeds_changes_nothing_and_the_same_runs_give_the_same():
    rng = np.random.default_rng(5)
    runs = [run(label, s, format=rng.random(100)) for label in ("grpo", "gdpo") for s in range(12)]
    first, again = analysed(runs), analysed(runs)
    mixed = analysed([*runs[11::-1], *runs[:11:-1]])
    for other in (again, mixed):
        assert other.differences == first.differences
        assert said(other) == said(first)
        assert [o.final for o in other.outcomes] == [o.final for o in first.outcomes]


def test_sooner_means_sooner_in_the_statistic_that_was_tested():
    """Three of ten at once and the others never are fewer than all of them late."""
    end = [0.5] * 100
    late = [run("gdpo", s, format=[0.1] * (845 + s) + [0.9] * (55 - s) + end) for s in range(10)]
    early = [run("grpo", s, format=[0.1] * 5 + [0.9] * 10 + [0.1] * 885 + end) for s in range(3)]
    never = [run("grpo", s, format=[0.1] * 900 + end) for s in range(3, 10)]
    found = analysed([*early, *never, *late], total_steps=1000)
    (d,) = found.differences
    assert d.p_time_adjusted < 0.05
    assert d.excess > 0
    assert "sooner than grpo" in headline(found)


def test_a_reward_that_is_constant_in_all_runs_takes_no_comparison_away_from_the_others():
    brevity = unit("brevity")
    runs = [replace(r, means={**r.means, "brevity": np.ones(100)}) for r in apart()]
    found = analysed(runs, rewards=(FORMAT, brevity))
    format_d, brevity_d = found.differences
    assert (format_d.constant, brevity_d.constant) == (False, True)
    assert format_d.p_adjusted == format_d.p_value == pytest.approx(1 / 126)
    assert brevity_d.p_adjusted == brevity_d.p_time_adjusted == 1


def test_a_reward_that_is_constant_in_one_estimator_only_is_counted():
    brevity = unit("brevity")
    ends = {"grpo": [1.0] * 5, "gdpo": [1.0, 1.0, 1.0, 1.0, 0.9]}
    runs = [
        replace(r, means={**r.means, "brevity": np.full(100, ends[r.label][r.seed])})
        for r in apart()
    ]
    format_d, brevity_d = analysed(runs, rewards=(FORMAT, brevity)).differences
    assert not brevity_d.constant
    assert format_d.p_adjusted == pytest.approx(2 / 126)


def test_a_threshold_that_no_run_reached_takes_no_comparison_of_times_away():
    runs = [replace(r, means={**r.means, "correctness": np.full(100, -1.0)}) for r in apart()]
    format_d, _ = analysed(runs, rewards=BOTH).differences
    assert format_d.p_time_adjusted == format_d.p_time == pytest.approx(1 / 126)


def test_seeds_with_which_a_time_could_be_decided_are_not_called_too_few():
    rng = np.random.default_rng(0)
    rewards = tuple(unit(f"r{i}") for i in range(7))

    def runs(seeds):
        return [
            run(label, s, **{r.name: np.full(50, rng.uniform(0.2, 0.5)) for r in rewards[1:]})
            for label in ("grpo", "gdpo")
            for s in range(seeds)
        ]

    def timed(each):
        return replace(each, means={"r0": np.full(50, rng.uniform(0.82, 0.9)), **each.means})

    five = analysed([timed(r) for r in runs(5)], rewards=rewards, total_steps=50)
    assert sum(not d.untimed for d in five.differences) == 1
    assert headline(five) == "No difference between gdpo and grpo was found with 5 seeds."
    four = analysed([timed(r) for r in runs(4)], rewards=rewards, total_steps=50)
    assert "at least 5 seeds" in headline(four)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_the_other_differences_are_named_or_counted(count):
    rewards = tuple(unit(f"r{i}") for i in range(count))
    runs = [
        run(label, s, **{r.name: np.full(50, level + 0.01 * s) for r in rewards})
        for label, level in (("grpo", 0.2), ("gdpo", 0.5))
        for s in range(8)
    ]
    found = analysed(runs, rewards=rewards, total_steps=50)
    assert "r0" in headline(found)
    named = [f"gdpo higher in r{i}" for i in range(1, min(count, 5))]
    assert all(name in further(found) for name in named)
    assert further(found).endswith(
        f"r{count - 1}." if count <= 5 else "gdpo higher in r4 and 2 more."
    )


def test_a_reward_that_is_constant_up_to_rounding_has_a_p_value_of_1():
    ends = {"grpo": 1.0, "gdpo": 1.0 + 1000 * np.finfo(float).eps}
    runs = [run(label, s, format=[ends[label]] * 10) for label in ends for s in range(5)]
    (d,) = analysed(runs, total_steps=10).differences
    assert d.constant
    assert d.p_value == d.p_adjusted == 1
