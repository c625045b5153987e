from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gdpo.experiments.analysis import analyse
from gdpo.experiments.reading import Experiment, Measured, Run

FORMAT = Measured("format", 0.0, 1.0, 1.0)
CORRECTNESS = Measured("correctness", -3.0, 3.0, 1.0)


def run(label, seed, state="finished", why="", **means):
    curves = {name: np.array(values, dtype=float) for name, values in means.items()}
    return Run(label, seed, Path(f"{label}/{seed}"), state, why, curves)


def experiment(runs, *, rewards=(FORMAT,), total_steps=100, reach=0.8):
    labels = tuple(dict.fromkeys(r.label for r in runs))
    seeds = tuple(sorted({r.seed for r in runs}))
    return Experiment(
        "tool_calling", Path("runs"), labels, seeds, tuple(rewards), total_steps, tuple(runs), reach
    )


def rising(final, *, at=50, steps=100, start=0.1):
    """Jumps to its final value after a step."""
    return [start] * at + [final] * (steps - at)


def apart(seeds=5, *, gap=0.3):
    """gdpo ends higher by about `gap` with every seed, and comes to 80 %, as grpo never does."""
    return [
        *(run("grpo", s, format=rising(0.55 + 0.01 * s)) for s in range(seeds)),
        *(run("gdpo", s, format=rising(0.55 + gap + 0.012 * s)) for s in range(seeds)),
    ]


def test_an_estimator_that_ends_higher_with_every_seed_is_reported_with_its_interval():
    found = analyse(experiment(apart()))
    (d,) = found.differences
    assert d.final.value == pytest.approx(0.304)
    assert 0.29 < d.final.low < d.final.value < d.final.high < 0.32
    assert d.p_value == d.p_adjusted == d.p_floor == pytest.approx(1 / 126)
    assert d.p_time == pytest.approx(1 / 126)
    assert not found.exploratory
    assert found.question == (
        "Does gdpo do better than grpo on tool_calling: does format end higher, or reach 80 % of "
        "its range sooner?"
    )
    assert found.answer == (
        "gdpo ends higher than grpo in format, by 0.304 (95 % interval 0.3 to 0.308, 5 seeds, "
        "p = 0.0079); 5 of 5 runs of grpo never came to 80 % of format."
    )


def test_outcomes_hold_the_figures_of_each_estimator():
    grpo, gdpo = analyse(experiment(apart())).outcomes
    assert (grpo.label, grpo.reached, grpo.runs, grpo.failed) == ("grpo", 0, 5, 0)
    assert grpo.final.value == pytest.approx(0.57)
    assert (grpo.final.low, grpo.final.high) == pytest.approx((0.55, 0.59))
    np.testing.assert_allclose(grpo.finals, [0.55, 0.56, 0.57, 0.58, 0.59])
    assert np.isnan(grpo.survival.median.value)
    assert gdpo.reached == 5
    assert gdpo.best.value == pytest.approx(0.874)
    assert gdpo.survival.median.value == 55


def test_three_seeds_are_exploratory_and_cannot_go_below_a_tenth():
    found = analyse(experiment(apart(3)))
    assert found.exploratory
    assert found.differences[0].p_value == pytest.approx(0.1)
    assert found.differences[0].p_time == pytest.approx(0.1)
    assert np.isnan(found.outcomes[0].final.low), "no interval of 3 seeds holds what it says"
    assert found.answer.startswith("No difference between gdpo and grpo can be told with 3 seeds:")
    assert "; with 3 seeds no p-value can be below 0.1;" in found.answer


def test_arms_that_are_alike_are_not_told_apart():
    rng = np.random.default_rng(0)
    runs = [
        run(label, s, format=rising(v))
        for label in ("grpo", "gdpo")
        for s, v in enumerate(0.9 + 0.02 * rng.standard_normal(6))
    ]
    found = analyse(experiment(runs))
    assert found.differences[0].p_adjusted > 0.05
    assert found.differences[0].final.low < 0 < found.differences[0].final.high
    assert found.answer.startswith("No difference between gdpo and grpo can be told with 6 seeds")
    assert "95 % interval -" in found.answer
    assert "no p-value" not in found.answer


def test_an_estimator_that_ends_lower_is_reported_as_lower():
    (d,) = analyse(experiment(apart(gap=-0.3))).differences
    assert d.final.high < 0
    answer = analyse(experiment(apart(gap=-0.3))).answer
    assert "gdpo ends lower than grpo in format, by 0.296 (95 % interval 0.292 to 0.3," in answer


def test_what_speaks_against_a_result_is_told_with_it():
    runs = [
        run(label, s, format=rising(0.5 + f + 0.01 * s), correctness=rising(c + 0.02 * s))
        for label, f, c in (("grpo", 0.0, 2.0), ("gdpo", 0.4, 1.0))
        for s in range(5)
    ]
    found = analyse(experiment(runs, rewards=(FORMAT, CORRECTNESS)))
    assert [d.reward for d in found.differences] == ["format", "correctness"]
    assert [d.p_adjusted for d in found.differences] == pytest.approx([2 / 126] * 2)
    assert "gdpo ends higher than grpo in format, by 0.4" in found.answer
    assert "; but gdpo ends lower than grpo in correctness, by 1 (" in found.answer
    assert "corrected for 2 comparisons" in found.answer


def test_arms_that_end_alike_can_be_told_apart_by_their_pace():
    runs = [
        run(label, s, format=rising(0.9 + 0.01 * ((s * k) % 5), at=at + s))
        for label, at, k in (("grpo", 60, 1), ("gdpo", 20, 2))
        for s in range(5)
    ]
    found = analyse(experiment(runs))
    assert found.differences[0].p_value > 0.5
    assert found.differences[0].p_time_adjusted == pytest.approx(1 / 126)
    assert found.answer == (
        "gdpo comes to 80 % of format sooner than grpo (half of the runs by step 27 against by "
        "step 67, 5 seeds, p = 0.0079), and where they end no difference can be told."
    )


def test_several_arms_and_rewards_are_corrected_together():
    rng = np.random.default_rng(1)
    runs = [
        run(label, s, format=rising(shift + 0.01 * rng.random()), correctness=rising(rng.random()))
        for label, shift in (("grpo", 0.5), ("gdpo", 0.9), ("rloo", 0.5), ("dvao", 0.5))
        for s in range(5)
    ]
    found = analyse(experiment(runs, rewards=(FORMAT, CORRECTNESS)))
    assert len(found.differences) == 6
    first = found.differences[0]
    assert (first.label, first.reward, first.baseline) == ("gdpo", "format", "grpo")
    assert first.p_adjusted == pytest.approx(6 * first.p_value)
    assert all(d.p_adjusted >= d.p_value for d in found.differences)
    assert found.question.startswith("Do gdpo, rloo and dvao do better than grpo on tool_calling:")
    # With more comparisons than 5 seeds can carry, even estimators wholly apart cannot be told.
    many = [
        replace(r, label=f"{r.label}_{i}") for i in range(8) for r in apart() if r.label == "gdpo"
    ]
    crowded = analyse(experiment([*apart(), *many]))
    assert min(d.p_adjusted for d in crowded.differences) == pytest.approx(9 / 126)
    assert "no p-value can be below 0.0079, 0.071 when corrected" in crowded.answer


def test_failed_runs_count_with_what_they_reached():
    runs = apart()
    runs[0] = run("grpo", 0, "failed", "out of memory", format=[0.3] * 20)
    runs[6] = run("gdpo", 1, "failed", format=[0.2] * 7)
    runs[7] = run("gdpo", 2, "failed", "no GPU")
    found = analyse(experiment(runs))
    grpo, gdpo = found.outcomes
    assert (grpo.runs, grpo.failed) == (5, 1)
    assert grpo.finals[0] == pytest.approx(0.3)
    assert (gdpo.runs, gdpo.failed, gdpo.reached) == (4, 1, 3)
    assert np.isnan(gdpo.finals[2])
    assert found.differences[0].pairs == 4
    assert found.exploratory
    assert gdpo.survival.share[-1] == 0, "the one cut short at step 7 was no longer awaited"
    assert "1 of 5 runs of grpo ended early and counts with what it reached" in found.answer
    assert "1 of 5 runs of gdpo ended before its first step and is left out" in found.answer


def test_a_run_that_failed_after_its_last_step_did_not_fail():
    runs = [run("grpo", 0, "failed", "disk full", format=[0.5] * 100)]
    assert analyse(experiment(runs)).outcomes[0].failed == 0


def test_an_experiment_that_has_just_begun_says_so():
    runs = [run(label, s, "waiting") for label in ("grpo", "gdpo") for s in range(5)]
    found = analyse(experiment(runs))
    assert found.outcomes[0].runs == found.differences[0].pairs == 0
    assert np.isnan([found.differences[0].p_value, *found.outcomes[0].survival.share]).all()
    assert found.answer == (
        "No seed has ended both in grpo and in another estimator yet; 10 of 10 runs are not done yet."
    )
    runs[0] = run("grpo", 0, "running", format=[0.9] * 3)
    runs[5] = run("gdpo", 0, "running", format=[0.2] * 40)
    found = analyse(experiment(runs))
    assert found.outcomes[0].reached == 0, "nothing is reached in fewer steps than the window"
    assert found.outcomes[1].final.value == pytest.approx(0.2)
    assert found.differences[0].pairs == 0, "runs that go on are not held against each other"


def test_two_runs_that_have_ended_are_a_pair_without_an_interval():
    runs = [run("grpo", 0, format=[0.9] * 100), run("gdpo", 0, format=[0.2] * 100)]
    runs += [run("grpo", 1, format=[0.9] * 100), run("gdpo", 1, "running", format=[0.9] * 40)]
    (d,) = analyse(experiment(runs)).differences
    assert d.pairs == 1
    assert d.final.value == pytest.approx(-0.7)
    assert np.isnan(d.final.low)
    assert d.p_value == d.p_floor == 1


def test_one_label_is_described_and_compared_with_nothing():
    found = analyse(experiment(apart()[:5]))
    assert found.differences == ()
    assert found.question == "How far does grpo come on tool_calling in format?"
    assert found.answer == "grpo ends format at 0.57 (95 % interval 0.55 to 0.59) over 5 seeds."
    alone = analyse(experiment(apart()[:1]))
    assert alone.exploratory
    assert alone.answer == "grpo ends format at 0.55 (its interval cannot be told) over 1 seed."
    nothing = analyse(experiment([run("grpo", 0)]))
    assert nothing.answer == "No run of grpo has a step yet."


def test_runs_that_are_all_alike_from_the_first_step_on():
    runs = [run(label, s, format=[1.0] * 100) for label in ("grpo", "gdpo") for s in range(5)]
    found = analyse(experiment(runs))
    (d,) = found.differences
    assert (d.final.value, d.p_value, d.p_time) == (0.0, 1.0, 1.0)
    assert np.isnan(d.final.low)
    assert found.outcomes[0].survival.median.value == 5
    assert found.answer == (
        "No difference between gdpo and grpo can be told with 5 seeds: the best supported, in "
        "format, is +0 (its interval cannot be told, p = 1)."
    )


def test_runs_of_one_step_can_reach_it():
    runs = [run(label, s, format=[1.0]) for label in ("grpo", "gdpo") for s in range(5)]
    found = analyse(experiment(runs, total_steps=1))
    assert found.outcomes[0].survival.median.value == 1


def test_seeds_are_paired_by_number_and_only_those_of_both_labels():
    runs = [
        *(run("grpo", s, format=rising(0.1 * s)) for s in (0, 1, 2, 3, 4, 5, 6)),
        *(run("gdpo", s, format=rising(0.1 * s + 0.05)) for s in (6, 5, 4, 3, 2)),
    ]
    (d,) = analyse(experiment(runs)).differences
    assert d.pairs == 5
    assert d.final.value == pytest.approx(0.05)
    other = [replace(r, seed=r.seed + 3) if r.label == "gdpo" else r for r in runs]
    found = analyse(experiment(other))
    assert found.differences[0].pairs == 2
    assert found.exploratory, "five seeds each, but not in common"


def test_a_reward_that_applied_to_no_step_is_left_out_of_its_own_comparison_only():
    runs = [
        run(label, s, format=rising(0.9 - 0.01 * s), correctness=[np.nan] * 100)
        for label in ("grpo", "gdpo")
        for s in range(5)
    ]
    found = analyse(experiment(runs, rewards=(FORMAT, CORRECTNESS)))
    format_d, correctness_d = found.differences
    assert correctness_d.pairs == 0
    assert np.isnan([correctness_d.p_value, correctness_d.p_adjusted]).all()
    assert format_d.p_adjusted == format_d.p_value, "what cannot be asked is not counted"
    assert np.isnan(found.hypervolumes[0][1].value)


def test_hypervolume_is_the_product_of_the_scaled_finals_averaged_over_seeds():
    runs = [
        run(label, s, format=rising(f), correctness=rising(c))
        for label, f, c in (("grpo", 0.5, 3.0), ("gdpo", 0.75, 0.0))
        for s in range(5)
    ]
    found = analyse(experiment(runs, rewards=(FORMAT, CORRECTNESS)))
    assert [label for label, _ in found.hypervolumes] == ["grpo", "gdpo"]
    assert [volume.value for _, volume in found.hypervolumes] == pytest.approx([0.5, 0.375])
    assert analyse(experiment(apart())).hypervolumes == ()


def test_an_interval_of_a_difference_ends_where_the_reward_does():
    runs = [
        run(label, s, format=rising(v))
        for label, v in (("grpo", 0.0), ("gdpo", 1.0))
        for s, v in enumerate([v, v, 0.5])
    ]
    (d,) = analyse(experiment(runs)).differences
    assert d.final.high == 1.0


def test_the_order_of_seeds_changes_nothing_and_the_same_runs_give_the_same():
    rng = np.random.default_rng(5)
    runs = [run(label, s, format=rng.random(100)) for label in ("grpo", "gdpo") for s in range(12)]
    first, again = analyse(experiment(runs)), analyse(experiment(runs))
    mixed = analyse(experiment([*runs[11::-1], *runs[:11:-1]]))
    for other in (again, mixed):
        assert other.differences == first.differences
        assert other.answer == first.answer
        assert [o.final for o in other.outcomes] == [o.final for o in first.outcomes]


def test_ten_arms_of_twenty_seeds_are_compared_in_every_reward():
    rng = np.random.default_rng(0)
    rewards = tuple(Measured(name, 0.0, 1.0, 1.0) for name in "abc")
    runs = [
        run(f"estimator{a}", s, **{r.name: rng.random(300) for r in rewards})
        for a in range(10)
        for s in range(20)
    ]
    found = analyse(experiment(runs, rewards=rewards, total_steps=300))
    assert len(found.differences) == 27


def test_the_pace_that_is_told_is_the_one_that_was_tested():
    """Three of ten at once and the others never are fewer than all of them late."""
    end = [0.5] * 100
    late = [run("gdpo", s, format=[0.1] * (845 + s) + [0.9] * (55 - s) + end) for s in range(10)]
    early = [run("grpo", s, format=[0.1] * 5 + [0.9] * 10 + [0.1] * 885 + end) for s in range(3)]
    never = [run("grpo", s, format=[0.1] * 900 + end) for s in range(3, 10)]
    found = analyse(experiment([*early, *never, *late], total_steps=1000))
    (d,) = found.differences
    assert d.p_time_adjusted < 0.05
    assert d.excess > 0
    assert found.answer.startswith("gdpo comes to 80 % of format sooner than grpo")


def test_four_seeds_are_called_no_better_whatever_their_p_value():
    found = analyse(experiment(apart(4)))
    assert found.differences[0].p_adjusted < 0.05
    assert found.answer.startswith("No difference between gdpo and grpo can be told with 4 seeds")


def test_runs_that_still_go_on_have_not_failed_to_arrive():
    going = [run("gdpo", s, "running", format=[0.1] * 12) for s in range(5)]
    found = analyse(experiment([r for r in apart() if r.label == "grpo"] + going))
    assert "never came" not in found.answer
    assert "5 of 10 runs are not done yet" in found.answer
