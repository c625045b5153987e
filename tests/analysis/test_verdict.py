"""What a run calls for, and which checks could not run."""

import json
import shlex
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.analysis.planted import Run, analyzed, write_run
from tests.analysis.printed import lines_of
from tests.analysis.rows import run_of
from tests.analysis.turn_rollouts import recorded

from gdpo.analysis import Analysis, analyze, as_dict
from gdpo.analysis.verdict import Action, Verdict, _applied, _unclear, _unknown_range
from gdpo.diagnostics.diagnosis import Cause, Kind, Severity
from gdpo.diagnostics.findings import TABLE
from gdpo.diagnostics.influence import NoInterval
from gdpo.diagnostics.readings import Meaning, Reading
from gdpo.report import write_rollouts_report
from gdpo.report.summaries import reward_blocks
from gdpo.rollouts.readers import read_rollout_files


def run_with(*scales, steps=8, size=(16, 8), same=0.0):
    """Normal rewards with these standard deviations. `same`: part that all rewards share."""

    def draw(random, step, size):
        common = same * random.standard_normal(size)
        rewards = [scale * (common + random.standard_normal(size)) for scale in scales]
        return {f"r{k}": values for k, values in enumerate(rewards)}

    return Run(draw, steps=steps, size=size)


def only_verdict(analysis):
    (run,) = analysis.runs
    return analysis.verdict(run)


def verdict_of(run, **options):
    return only_verdict(analyzed(run, **options))


def verdict_in(folder, **options):
    return only_verdict(analyze(read_rollout_files(folder), **options))


IF_EQUAL = [(Meaning.EQUAL, True), (Meaning.SIZES, False)]
"""The readings of a verdict that calls for a change only if the rewards should count equally."""


def readings_of(verdict):
    return [(each.meaning, each.needed) for each in verdict.readings]


def within(low, high, *names):
    """Return the options that declare this range of some rewards."""
    return {"low": dict.fromkeys(names, low), "high": dict.fromkeys(names, high)}


def printed(analysis):
    return " ".join(lines_of(analysis, 500)[:-1])


def page_of(analysis, folder):
    write_rollouts_report(analysis, folder / "page.html")
    return (folder / "page.html").read_text("utf-8").replace("<wbr>", "")


def test_few_groups_of_trl_need_every_step(tmp_path):
    """TRL's unchanged script with logging_steps=5 writes 4 files with 16 groups."""
    write_run(tmp_path / "run", run_with(1, 100, steps=20, size=(4, 8)))
    for file in (tmp_path / "run").iterdir():
        if int(file.stem.rpartition("_")[2]) % 5:
            file.unlink()
    analysis = analyze(read_rollout_files(tmp_path / "run"))
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.groups) == (Action.UNKNOWN, 16)
    (missing,) = verdict.unchecked
    assert "logging_steps=1" in missing.remedy
    assert f"not checked: {missing}" in printed(analysis)
    few = "16 groups are too few to tell. Record at least 64 groups"
    assert f"no findings, but {few}" in printed(analysis)
    (run,) = as_dict(analysis)["runs"]
    assert run["unchecked"] == [
        {"check": missing.check, "reason": missing.reason, "remedy": missing.remedy}
    ]
    assert (run["verdict"]["action"], run["verdict"]["groups"]) == ("unknown", 16)
    assert run["verdict"]["sentence"] == verdict.sentence
    (missing,) = verdict_of(run_with(1, 100, steps=1, size=(1, 8))).unchecked
    assert missing.reason.startswith("1 group is ")
    assert "unchecked" not in run["verdict"]
    page = page_of(analysis, tmp_path)
    assert few in page
    assert "logging_steps=1" in page
    assert "Verdict:" in page


@pytest.mark.parametrize(
    ("write", "kept"), [("trl", (1,)), ("trl", (1, 2)), ("trl", (1, 2, 4)), ("gdpo", (1, 3))]
)
def test_few_groups_in_steps_without_gaps_or_of_another_format_need_more_of_them(
    tmp_path, write, kept
):
    if write == "trl":
        write_run(tmp_path, run_with(1, 100, steps=4))
    else:
        run_of(tmp_path, [0.5] * 4)
    for step, file in enumerate(sorted(p for p in tmp_path.rglob("*") if p.is_file()), start=1):
        if step not in kept:
            file.unlink()
    (missing,) = verdict_in(tmp_path).unchecked
    assert "64 groups" in missing.remedy
    assert "logging_steps" not in missing.remedy


def test_a_reward_that_never_varied_at_an_unknown_place_is_not_called_learned(tmp_path):
    folder = run_of(tmp_path, [1.0] * 6)
    verdict = verdict_in(folder)
    assert (verdict.action, verdict.kind) == (Action.CHECK, Kind.CONSTANT)
    assert "--range format=" in verdict.unchecked[0].remedy
    known = analyze(read_rollout_files(folder), **within(0.0, 1.0, "format"))
    verdict = only_verdict(known)
    assert (verdict.action, verdict.learned) == (Action.NOTHING, ("format",))
    assert "not checked" not in printed(known)
    for ends in ((2.0, 3.0), (-1.0, 0.0)):
        wrong = verdict_in(folder, **within(*ends, "format"))
        assert wrong.action is Action.CHECK
        assert "wrong" in wrong.unchecked[0].reason


def test_the_ranges_of_several_rewards_are_asked_for_in_one_pair_of_options(tmp_path, gdpo_says):
    """What is printed can be pasted, with numbers in the place of LOWEST and HIGHEST."""

    def draw(random, step, size):
        return {"form": np.ones(size), "tone": np.zeros(size), "style": random.random(size)}

    folder = write_run(tmp_path / "run", Run(draw, steps=8))
    verdict = verdict_in(folder)
    (missing,) = verdict.unchecked
    assert missing.check == "whether `form` and `tone` are learned"
    never = "it has not varied in any of 128 groups, from the first step on (1 more warning)"
    assert verdict.sentence == f"check the function of `form` first: {never}"
    assert missing.reason.startswith("the ranges of `form` and `tone` are unknown")
    pasted = missing.remedy.removeprefix("add ").replace("LOWEST", "0").replace("HIGHEST", "1")
    _, out, _ = gdpo_says("analyze", folder, *shlex.split(pasted), "--output", "json")
    (run,) = json.loads(out)["runs"]
    assert run["unchecked"] == []
    assert run["verdict"]["learned"] == ["form"]
    assert (run["verdict"]["action"], run["verdict"]["rewards"]) == ("check", ["tone"])


def test_a_range_of_turns_is_that_of_their_sum(tmp_path):
    def flat(random, groups):
        return np.full((groups, 4), 3), np.stack(
            np.broadcast_arrays(1.0, random.random((groups, 4, 3))), axis=-1
        )

    recorded(tmp_path, scenario=flat)
    (missing,) = verdict_in(tmp_path).unchecked
    assert missing.check == "whether `format` is learned"
    assert "of the sum" in missing.remedy
    assert "of the sum" in _unknown_range({"f": nan}, of_sum=True).remedy
    assert _unknown_range({"a b": nan}, of_sum=False).remedy.startswith(
        "add --range 'a b=LOWEST:HIGHEST'"
    )
    assert "unknown" in _unknown_range({"f": 1.5, "g": nan}, of_sum=False).reason


@pytest.mark.parametrize(
    ("scales", "action", "trained"), [((1,), "nothing", 1), ((1, 1, 2), "nothing", 3)]
)
def test_nothing_is_to_do_with_one_reward_or_with_enough_influence_of_each(scales, action, trained):
    analysis = analyzed(run_with(*scales))
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.trained, verdict.unchecked) == (action, trained, ())
    assert lines_of(analysis)[-1] == f"verdict: {verdict.sentence}"
    assert "verdict" not in printed(analysis)


def test_a_share_whose_interval_contains_its_limit_needs_more_groups():
    def untied(random, step, size):
        return coin(random, step, size) + 0.05 * random.standard_normal(size)

    run = drawn(steps=4, r0=untied, r1=times(50, untied))
    verdict = verdict_of(replace(run, size=(32, 3)))
    assert (verdict.action, verdict.kind, verdict.rewards) == (Action.UNKNOWN, None, ("r0",))
    assert "128 groups are too few" in verdict.sentence
    assert "`r0` has a quarter of its weight share, or 5 % of the influence" in verdict.sentence
    both = replace(verdict, rewards=("r0", "r2")).sentence
    assert "`r0` and `r2` each have a quarter" in both


def test_a_scalar_reward_needs_its_parts(saved):
    rows = [
        {"prompt": f"q{i // 4}", "completion": "x", "reward": float(r), "step": 1}
        for i, r in enumerate(np.random.default_rng(0).random(400))
    ]
    verdict = verdict_in(saved("1.jsonl", rows))
    assert verdict.action is Action.UNKNOWN
    assert "--rescore" in verdict.unchecked[0].remedy


def test_rewards_that_measure_the_same_call_for_a_change():
    verdict = verdict_of(run_with(1, 1, same=10))
    assert (verdict.action, verdict.kind) == (Action.CHANGE, Kind.REDUNDANT)
    assert set(verdict.rewards) == {"r0", "r1"}


def test_a_share_that_is_unknown_is_unclear():
    (reward,) = analyzed(run_with(1)).runs[0].rewards
    assert _unclear([replace(reward, influence_share=nan)], ()) == [reward.name]


@pytest.mark.parametrize("ranges", [{}, within(0.0, 2.0, "form")])
def test_a_reward_that_never_varied_is_to_be_checked_whatever_else_is_wrong(ranges):
    def draw(random, step, size):
        constant = {"form": np.ones(size), "tone": np.ones(size)}
        return {**run_with(1, 100).draw(random, step, size), **constant}

    verdict = verdict_of(Run(draw, steps=32), **ranges)
    assert (verdict.action, verdict.kind, verdict.more) == (Action.CHECK, Kind.CONSTANT, 3)
    assert verdict.rewards == ("form",)


def test_a_constant_reward_that_varied_once_is_not_to_be_checked():
    def draw(random, step, size):
        form = np.ones(size)
        form[0, 0] -= step == 5
        return {**run_with(1, 100).draw(random, step, size), "form": form}

    verdict = verdict_of(Run(draw, steps=32), **within(0.0, 2.0, "form"))
    assert (verdict.kind, verdict.rewards, verdict.more) == (Kind.IGNORED, ("r0",), 2)
    even = Run(lambda *each: {**draw(*each), "r0": coin(*each), "r1": coin(*each)}, steps=32)
    verdict = verdict_of(even, **within(0.0, 0.5, "form"))
    assert (verdict.action, len(verdict.unchecked)) == (Action.UNKNOWN, 1)


def test_rewards_whose_correlation_is_minus_1_are_to_be_checked():
    def draw(random, step, size):
        first = random.random(size)
        return {"a": first, "b": 1 - first + noise * random.random(size), "c": random.random(size)}

    for noise, action in ((0.0, Action.CHECK), (0.2, Action.CHANGE)):  # noqa: B007 (draw reads it)
        verdict = verdict_of(Run(draw, steps=8))
        assert verdict.action is action
        if action is Action.CHECK:
            assert (verdict.kind, verdict.rewards) == (Kind.OPPOSED, ("a", "b"))
            assert verdict.sentence.startswith(
                "check the function of `a` and `b` first: their correlation is -1, as after an "
            )


def test_a_correlation_of_minus_1_that_is_asked_for_or_due_to_chance_is_no_error_of_a_function():
    def draw(random, step, size):
        first = random.random(size)
        return {"a": first, "b": 1 - first}

    run = Run(draw, steps=8)
    for sign, action in ((1.0, Action.CHECK), (-1.0, Action.CHANGE)):
        assert verdict_of(run, weights={"a": -1.0, "b": -sign}).action is action

    for shared, found in ((4, False), (5, True)):
        # Both vary in the same groups of two, but seldom.
        both = {"a": rare(shared), "b": rare(shared, turned=True)}
        run = replace(drawn(steps=24, **both, c=coin), size=(16, 2))
        assert (verdict_of(run).kind is Kind.OPPOSED) == found


@pytest.mark.parametrize(
    ("kind", "share", "new", "helps"),
    [
        (Kind.IGNORED, (0.11, 0.01), (0.21, 0.01), False),
        (Kind.IGNORED, (0.11, 0.01), (0.22, 0.01), True),
        (Kind.IGNORED, (0.11, 0.01), (0.22, 0.12), False),
        (Kind.IGNORED, (0.05, 0.06), (0.10, 0.01), False),
        (Kind.FALLS, (0.6, 0.01), (0.61, 0.02), False),
        (Kind.FALLS, (0.6, 0.01), (0.63, 0.02), True),
        (Kind.DOMINANT, (0.9, 0.01), (0.87, 0.02), True),
        (Kind.DOMINANT, (0.9, 0.01), (0.89, 0.02), False),
    ],
)
def test_a_setting_helps_that_gives_half_of_the_weight_share_or_twice_the_share(
    kind, share, new, helps
):
    verdict = replace(BASE, kind=kind, influence_share=share[0], influence_margin=share[1])
    reading = replace(EQUAL, shares={"format": new})
    assert _applied(reading, verdict) == (reading if helps else None)


@pytest.mark.parametrize(
    ("kind", "enough", "less", "unclear"),
    [(Kind.IGNORED, 0.125, -0.01, 0.14), (Kind.DOMINANT, 0.75, 0.01, 0.02)],
)
def test_a_reading_needs_no_change_if_the_interval_of_the_share_reaches_its_limit(
    kind, enough, less, unclear
):
    reading = replace(EQUAL, shares={"format": (0.5, 0.01)})
    for share, margin, needed in (
        (enough, nan, False),
        (enough + less, nan, True),
        (enough + less, unclear, False),
    ):
        of = replace(BASE, kind=kind, influence_share=share, influence_margin=margin)
        assert _applied(reading, of) == replace(reading, needed=needed)
        assert ("nothing to do" in str(_applied(reading, of))) != needed


def natural(format_size):
    """Correctness 2 or 0, a format, and a small length penalty, as many scripts have them."""

    def length(random, step, size):
        return -0.02 * random.random(size)

    return drawn(
        correct=times(2, coin),
        format=times(format_size, coin),
        length=length,
    )


def test_a_small_dense_reward_is_not_raised():
    """Only a setting that raises another reward is named, whatever the weights mean."""
    verdict = verdict_of(natural(0.3))
    assert readings_of(verdict) == IF_EQUAL
    kept = "nothing to do: no setting should raise `length`: a policy can earn it by giving up"
    assert verdict_of(natural(2.0)).sentence.startswith(kept)
    known = {"correct": 1.0, "format": 1.0}
    (reading,) = verdict_of(natural(0.3), weights={**known, "length": 0.01}).readings
    assert (reading.meaning, reading.needed) == (Meaning.WEIGHTS, True)
    analysis = analyzed(natural(0.5), weights={**known, "length": 1.0})
    assert only_verdict(analysis).sentence.startswith(kept)
    (held,) = [h for h in analysis.runs[0].findings if h.finding.rewards == ("length",)]
    assert held.finding.remedy.startswith("no setting should raise it: ")


def test_what_a_single_step_shows_calls_for_nothing():
    def draw(random, step, size):
        first = random.standard_normal(size)
        return {"a": first, "b": first if step == 3 else random.standard_normal(size)}

    analysis = analyzed(Run(draw, steps=8))
    (run,) = analysis.runs
    assert [held.finding.kind for held in run.findings] == [Kind.REDUNDANT]
    assert only_verdict(analysis).action is Action.NOTHING


EQUAL = Reading(Meaning.EQUAL, {"a": 1.0, "format": 1.0}, shares={"format": (0.24, 0.02)})

BASE = Verdict(
    Action.TRAIN,
    "",
    480,
    kind=Kind.IGNORED,
    rewards=("format",),
    causes=(Cause.SPARSE,),
    weight_share=0.5,
    influence_share=0.04,
    influence_margin=0.01,
    of_groups=64,
    readings=(EQUAL,),
    trained=2,
)


def test_a_reward_that_is_only_watched_is_no_second_reward(tmp_path):
    write_run(tmp_path / "run", run_with(1, 2, steps=2))
    tables = read_rollout_files(tmp_path / "run")
    verdict = only_verdict(analyze(tables, weights={"r0": 1.0, "r1": 0.0}))
    assert (verdict.action, verdict.trained) == (Action.NOTHING, 1)
    assert "no second reward" in verdict.sentence


def test_the_sentence_names_the_settings_the_shares_and_the_groups():
    has = "`format` has 4 % ± 1 of the influence for 50 % of the weight"
    in_trl = '. gdpo is multi_objective_aggregation="normalize_then_sum" in TRL'
    setting = "gdpo with reward_weights=[1, 1] (`format` 24 % ± 2)"
    equal = f"If the rewards should count equally: {setting}"
    assert BASE.sentence == f"{has}. {equal}{in_trl}"
    sizes = replace(EQUAL, meaning=Meaning.SIZES, needed=False, sizes={"a": 3.0, "format": 0.25})
    assert replace(BASE, readings=(EQUAL, sizes)).sentence == (
        f"{has}. {equal}. If the sizes of the rewards say what matters (3 : 0.25): nothing to do"
        f"{in_trl}. For one verdict, add --weights or --sizes-are-weights"
    )
    given = replace(BASE, readings=(replace(EQUAL, meaning=Meaning.WEIGHTS),))
    assert given.sentence == f"use {setting}: {has}{in_trl}"
    falls = replace(given, kind=Kind.FALLS, from_step=40, more=2).sentence
    assert ": `format` falls, and has 4 % ± 1 of the" in falls
    assert "over 64 groups from step 40" in falls
    assert falls.endswith(" (2 more warnings)")
    change = replace(BASE, action=Action.CHANGE, readings=())
    assert change.sentence == (
        f"samples that earn `format` are rare, and no setting of the weights changes that. {has}"
    )
    assert len({replace(change, causes=(c,)).sentence for c in Cause}) == len(Cause)


def test_a_run_that_has_learned_everything_says_so():
    learned = replace(BASE, action=Action.NOTHING, learned=("a", "b"))
    assert learned.sentence.endswith("`a` and `b` are learned")
    assert "each other reward" in replace(learned, trained=3).sentence


def test_each_kind_of_warning_has_something_to_do():
    notes = (Kind.MOSTLY_MISSING, Kind.SATURATED, Kind.DOMINANT)
    for kind in set(Kind) - {*notes}:
        assert replace(BASE, action=Action.CHANGE, kind=kind, rewards=("a", "b")).sentence
    assert {kind for kind, row in TABLE.items() if row.severity is Severity.NOTE} == {*notes}


def test_the_most_urgent_of_several_runs_comes_first(tmp_path):
    for name, run in (("even", run_with(1, 1)), ("uneven", run_with(0.3, 1, 100, steps=32))):
        write_run(tmp_path / name, run)
    analysis = analyze(read_rollout_files(tmp_path))
    assert [analysis.verdict(run).action for run in analysis.runs] == ["nothing", "train"]
    assert analysis.worst_verdict() == analysis.verdict(analysis.runs[1])
    assert " (1 more run): " in lines_of(analysis)[-1]
    assert Analysis(analysis.report).worst_verdict() is None


def test_the_summary_has_at_most_six_rewards_and_three_findings():
    def draw(random, step, size):
        constant = {f"c{k}": np.full(size, float(k)) for k in range(5)}
        return {"a": random.random(size), "b": random.random(size), **constant}

    analysis = analyzed(Run(draw, steps=8))
    lines = lines_of(analysis)
    assert "and 1 more reward (--output json prints all)" in lines
    assert len(reward_blocks(analysis)[0].lines) == 1 + 7, "a page has all"
    assert sum(line.startswith("! ") for line in lines) == 3
    assert "and 2 more findings (--output json prints all)" in lines
    assert any(line.startswith("not checked") for line in lines)
    text = " ".join(map(str.strip, lines_of(analysis, 500)))
    assert "(--range)" in text
    assert "(low, high)" not in text  # which is for Python
    assert "and 2 more findings (on a⟨U+001B⟩.html)" in lines_of(
        analysis, 99, False, Path("a\x1b.html")
    )


def drawn(steps=40, **rewards):
    """A run whose rewards are functions of the random numbers, the step and the size."""

    def draw(random, step, size):
        return {name: each(random, step, size) for name, each in rewards.items()}

    return Run(draw, steps=steps)


def coin(random, step, size):
    return (random.random(size) < 0.5) * 1.0


def times(factor, draw):
    """A reward that is a multiple of another one."""
    return lambda *each: factor * draw(*each)


def rate(first, last, high=1.0):
    """A reward of two values that is high at a rate that goes from the first to the last one."""

    def draw(random, step, size):
        return np.where(random.random(size) < first + (last - first) * step / 40, high, 0.0)

    return draw


def kinds(analysis):
    return [
        (h.finding.kind, h.finding.rewards, h.finding.severity) for h in analysis.runs[0].findings
    ]


def held_as(kind, analysis):
    return [held for held in analysis.runs[0].findings if held.finding.kind is kind]


def found_as(kind, analysis):
    """Return the rewards of each finding of a kind."""
    return [held.finding.rewards for held in held_as(kind, analysis)]


def test_a_reward_that_falls_by_more_than_a_twentieth_of_its_range_is_a_warning_with_what_rose():
    falls = rate(0.8, 0.3)
    analysis = analyzed(drawn(a=rate(0.3, 0.7), b=falls, c=coin, d=coin))
    (held,) = analysis.runs[0].findings
    finding = held.finding
    assert (finding.kind, finding.severity, finding.rewards) == (
        Kind.FALLS,
        Severity.WARNING,
        ("b",),
    )
    assert (held.lasting, held.certain, held.spans) == (True, False, ((1, 40),))
    reward = analysis.runs[0].rewards[1]
    assert finding.evidence == {"change": reward.change, "margin": reward.change_margin}
    assert finding.message == (
        f"`b` falls: its mean went from {reward.first:.2g} to {reward.last:.2g}, while `a` rose"
    )
    verdict = only_verdict(analysis)
    assert verdict.sentence == (
        "read rollouts of the first and of the last steps before you train on: `b` falls"
    )
    for other in (rate(0.7, 0.64), rate(0.65, 0.55), rate(0.4, 0.7)):  # less; unclear; up
        assert not kinds(analyzed(drawn(b=other, c=coin)))
    wider = {"low": {"b": 0.0, "c": 0.0}, "high": {"b": 10.0, "c": 1.0}}
    assert not kinds(analyzed(drawn(b=falls, c=coin), **wider))


def test_a_reward_with_a_negative_weight_falls_if_its_mean_rises_and_one_without_a_weight_never():
    for weight, rewards in ((-1.0, [("a",)]), (0.0, []), (1.0, [])):
        weights = {"a": weight, "c": 1.0}
        analysis = analyzed(drawn(a=rate(0.3, 0.7), c=coin), weights=weights)
        assert found_as(Kind.FALLS, analysis) == rewards


def test_a_small_dense_reward_that_falls_is_a_note():
    """A length penalty may fall while correctness rises."""

    def length(random, step, size):
        return np.clip(0.1 * random.random(size) - 0.002 * step, -0.1, 0.1) * 0.5

    analysis = analyzed(drawn(correct=rate(0.3, 0.7), length=length))
    assert (Kind.FALLS, ("length",), Severity.NOTE) in kinds(analysis)
    assert only_verdict(analysis).kind is not Kind.FALLS
    large = analyzed(drawn(correct=rate(0.3, 0.7), length=times(40, length)))
    assert (Kind.FALLS, ("length",), Severity.WARNING) in kinds(large)


def test_a_fall_of_a_reward_that_lacks_influence_names_the_setting_and_the_primary_is_first():
    run = drawn(b=rate(0.7, 0.3), a=rate(0.7, 0.3, high=10.0))
    analysis = analyzed(run)
    assert [kind for kind, *_ in kinds(analysis)][:3] == [Kind.FALLS, Kind.FALLS, Kind.IGNORED]
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.kind, verdict.rewards) == (Action.TRAIN, Kind.FALLS, ("b",))
    assert verdict.sentence.startswith("`b` falls, and has ")
    assert readings_of(verdict) == IF_EQUAL
    verdict = verdict_of(run, primary="a")
    assert (verdict.action, verdict.rewards) == (Action.CHANGE, ("a",))


def test_a_fall_of_another_reward_comes_before_a_primary_reward_that_is_pushed_down():
    def draw(random, step, size):
        a = rate(0.7, 0.3, high=10.0)(random, step, size)
        return {"a": a, "b": (a == 0) * coin(random, step, size)}

    verdict = verdict_of(Run(draw, steps=40), primary="b")
    assert (verdict.kind, verdict.rewards) == (Kind.FALLS, ("a",))


def test_a_reward_with_more_than_half_as_much_again_as_its_weight_share_is_dominant():
    analysis = analyzed(drawn(a=coin, b=times(10, coin), c=coin))
    (held,) = held_as(Kind.DOMINANT, analysis)
    finding, whole = held.finding, analysis.runs[0].rewards[1]
    assert (finding.rewards, finding.severity, held.lasting) == (("b",), Severity.NOTE, True)
    assert finding.evidence == {
        "weight_share": whole.weight_share,
        "influence_share": whole.influence_share,
        "influence_margin": whole.influence_margin,
    }
    assert "of the influence for 33 % of the weight" in finding.message
    assert ". Less than half of its weight share is left for `a` (" in finding.message
    assert " for 33 %) and `c` (" in finding.message
    assert finding.remedy == "what follows depends on what the weights mean"
    # The others have more than half of their share; b has less than 1.5 times its own; both hold.
    for a, b, dominant in ((1, 3, False), (0.3, 1, False), (1, 6, True)):
        scaled = (times(by, coin) for by in (a, b))
        run = drawn(**dict(zip("ab", scaled, strict=True)), c=coin)
        assert bool(found_as(Kind.DOMINANT, analyzed(run))) == dominant
    watched = {"a": 1.0, "b": 1.0, "c": 0.0}

    def draw(random, step, size):
        a, b = coin(random, step, size), coin(random, step, size)
        return {"a": a, "b": 10 * b, "c": b}

    analysis = analyzed(Run(draw, steps=40), weights=watched)
    assert found_as(Kind.DOMINANT, analysis) == [("b",)]
    flat = drawn(a=coin, b=lambda random, step, size: np.zeros(size))
    assert not found_as(Kind.DOMINANT, analyzed(flat))
    run = drawn(a=rate(0.99, 0.99), b=coin)
    assert not found_as(Kind.DOMINANT, analyzed(run, **within(0.0, 1.0, "a")))


def rare(steps, *, turned=False):
    """A reward that varies in two groups of each of the first steps."""

    def draw(random, step, size):
        return np.eye(*size)[:, :: -1 if turned else 1] * (step <= steps)

    return draw


def judged(random, step, size):
    return 50 + 20 * random.standard_normal(size)


def test_the_purpose_of_the_weights_decides_between_the_readings():
    run = drawn(steps=16, correct=coin, judge=judged)
    unsaid = verdict_of(run)
    assert readings_of(unsaid) == IF_EQUAL
    assert "add --weights or --sizes-are-weights" in unsaid.sentence
    given = verdict_of(run, weights={"correct": 1.0, "judge": 1.0})
    assert given.sentence.startswith("use gdpo with reward_weights=[1, 1] (`correct` ")
    assert "--weights" not in given.sentence
    # The finding says the same as the verdict.
    remedies = [
        next(held.finding.remedy for held in only_run.findings if held.finding.causes)
        for only_run in (analyzed(run).runs[0], analyzed(run, weights={"judge": 1.0}).runs[0])
    ]
    assert "; if the sizes of the rewards say what matters" in remedies[0]
    assert remedies[1] == "; ".join(map(str, given.readings))
    run = drawn(steps=16, correct=coin, other=coin, judge=judged)
    sized = verdict_of(run, sizes_are_weights=True)
    assert (sized.action, sized.more, sized.readings) == (Action.NOTHING, 0, ())
    assert (
        sized.sentence
        == "nothing to do: what the weights mean explains the influence of each reward"
    )


def test_a_note_about_too_little_influence_calls_for_a_setting_that_helps():
    run = drawn(steps=32, a=coin, b=times(5, coin))
    analysis = analyzed(run)
    assert [each for each in kinds(analysis) if each[0] is Kind.IGNORED] == [
        (Kind.IGNORED, ("a",), Severity.NOTE)
    ]
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.rewards, verdict.more) == (Action.TRAIN, ("a",), 0)
    trained = verdict_of(replace(run, estimator="gdpo"))
    assert trained.action is Action.NOTHING


def test_where_no_setting_helps_only_the_purpose_can_say_that_nothing_is_to_do():
    run = replace(drawn(a=coin, b=rate(0.006, 0.006, high=0.05)), estimator="gdpo")
    rare = "samples that earn `b` are rare, and no setting of the weights changes that. `b` has 4 %"
    for options in ({}, {"weights": {"a": 1.0, "b": 1.0}}):
        assert verdict_of(run, **options).sentence.startswith(rare)
    assert verdict_of(run, sizes_are_weights=True).satisfied


def test_no_setting_is_named_for_rewards_that_exclude_each_other():
    def either(random, step, size):
        brief = random.random(size) < 0.5
        return {
            "right": 9.0 * (random.random(size) < 0.5),
            "brief": 1.0 * brief,
            "long": 1.0 - brief,
        }

    verdict = verdict_of(Run(either, steps=8))
    assert verdict.action is Action.CHECK  # exactly opposite

    def nearly(random, step, size):
        drawn = either(random, step, size)
        flips = random.random(size) < 0.1
        return {**drawn, "long": np.where(flips, 1 - drawn["long"], drawn["long"])}

    verdict = verdict_of(Run(nearly))
    assert (verdict.action, verdict.readings) == (Action.CHANGE, ())


def of_two(rate, *, steps=40):
    """A run whose second reward has this rate of success at each step."""

    def draw(random, step, size):
        both = random.random((2, *size))
        return {
            "a": (both[0] < 0.5) * 1.0,
            "b": np.where(rate(step) != rate(step), np.nan, both[1] < rate(step)),
        }

    return Run(draw, steps=steps)


def test_a_fault_that_has_ended_is_one_line_without_a_verdict_or_an_exit_code(tmp_path, gdpo_says):
    run = of_two(lambda step: 0.5 if step >= 9 else 0.0)
    folder = write_run(tmp_path / "run", run)
    analysis = analyze(read_rollout_files(folder), **within(0.0, 1.0, "a", "b"))
    (held,) = analysis.runs[0].findings
    assert (held.past, held.finding.kind) == (True, Kind.OUT_OF_REACH)
    assert held.finding.severity is Severity.NOTE
    assert held.spans[0][0] == 1
    assert held.spans[-1][1] <= 31
    (line,) = [line for line in lines_of(analysis, 500) if "`b`" in line]
    assert line.startswith(f"- in steps 1 to {held.spans[-1][1]}: ")
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.more) == (Action.NOTHING, 0)
    options = ["--range", "a=0:1,b=0:1", "--output", "none", "--fail-on", "note"]
    code, *_ = gdpo_says("analyze", folder, *options)
    assert code == 0


def test_a_reward_that_fell_asleep_decides_the_verdict_with_the_groups_of_the_last_quarter():
    verdict = verdict_of(of_two(lambda step: 0.5 if step <= 30 else 0.001))
    assert (verdict.action, verdict.kind, verdict.rewards) == (Action.CHANGE, Kind.FALLS, ("b",))
    narrowed = run_with(1, 1, steps=40).draw

    def draw(random, step, size):
        return narrowed(random, step, size) | {
            "b": 0.5 + (random.random(size) - 0.5) * (1 if step <= 30 else 0.01)
        }

    verdict = verdict_of(Run(draw, steps=40))
    assert (verdict.rewards, verdict.from_step, verdict.of_groups) == (("b",), 31, 160)


def test_a_reward_that_is_missing_from_every_rollout_never_applies_or_only_at_first(tmp_path):
    folder = write_run(tmp_path / "run", of_two(lambda step: np.nan, steps=4))
    never = analyze(read_rollout_files(folder, rewards=["a", "b"]))
    verdict = only_verdict(never)
    assert (verdict.action, verdict.kind) == (Action.CHECK, Kind.NEVER_APPLIES)
    assert verdict.sentence == "check the function of `b` first: it is missing from every rollout"
    write_rollouts_report(never, tmp_path / "page.html")
    assert "64 groups" in printed(never)
    some = analyzed(of_two(lambda step: np.nan if step % 8 else 0.5))
    (first,) = held_as(Kind.NEVER_APPLIES, some)
    assert (first.past, first.spans) == (True, ((1, 7),))


def test_the_worst_reward_of_a_kind_comes_first_whatever_the_order_of_the_columns():
    analysis = analyzed(run_with(0.02, 0.002, 1, size=(16, 64)))
    found = [(held.finding.kind, held.finding.rewards) for held in analysis.runs[0].findings]
    assert found == [(Kind.IGNORED, ("r1",)), (Kind.IGNORED, ("r0",)), (Kind.DOMINANT, ("r2",))]
    assert only_verdict(analysis).rewards == ("r1",)


def test_advantages_that_follow_no_reward_are_the_reason_why_nothing_is_known(tmp_path):
    folder = write_run(tmp_path / "run", run_with(1, 1, steps=20))
    random = np.random.default_rng(0)
    for file in folder.iterdir():
        table = pq.read_table(file)
        values = pa.array(random.standard_normal(len(table)))
        pq.write_table(
            table.set_column(table.column_names.index("advantage"), "advantage", values), file
        )
    analysis = analyze(read_rollout_files(tmp_path))
    verdict = only_verdict(analysis)
    reason = NoInterval.UNRELATED
    assert (verdict.action, verdict.no_interval) == (Action.UNKNOWN, reason)
    assert verdict.unknown.startswith(f"{reason}. ")
    assert f"no ±: {reason}" in printed(analysis)
    assert f"no ± of run: {reason}" in printed(replace(analysis, runs=2 * analysis.runs))
    page = page_of(analysis, tmp_path)
    assert f"no ±: {reason}" in page
    assert as_dict(analysis)["runs"][0]["verdict"]["no_interval"] == reason
    verdict = verdict_in(folder, weights={"r0": 0.0, "r1": 1.0})
    assert (verdict.action, verdict.no_interval) == (Action.UNKNOWN, reason)
    verdict = verdict_in(folder, weights={"r0": 0.0, "r1": 0.0})
    assert verdict.sentence == "nothing to do: the mean weight of each reward is 0"


def test_shares_that_few_groups_decide_have_no_interval_and_no_verdict():
    def draw(random, step, size):
        return {
            name: random.random(size) * (step < 2) * (np.arange(16)[:, None] < 8) for name in "ab"
        }

    (run,) = (analysis := analyzed(Run(draw, steps=8))).runs
    assert only_verdict(analysis).no_interval is NoInterval.FEW
    assert all(isnan(reward.influence_margin) for reward in run.rewards)
    assert only_verdict(analysis).action is not Action.NOTHING
