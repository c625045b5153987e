"""What a run calls for, and which checks could not run."""

import contextlib
import io
import json
import shlex
from dataclasses import replace
from math import isnan, nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.analysis.planted import Run, analyzed, write_run
from tests.analysis.rows import run_of
from tests.analysis.turn_rollouts import recorded
from tests.rollouts.readers import written

from gdpo.analysis import Analysis, analyze, as_dict
from gdpo.analysis.verdict import Action, Verdict, _about, _unclear, _unknown_range
from gdpo.cli import main
from gdpo.diagnostics.diagnosis import Cause, Finding, Kind, Remedy, Severity
from gdpo.diagnostics.influence import NoInterval
from gdpo.report import write_rollouts_report
from gdpo.report.summaries import rollouts_summary, verdict_line
from gdpo.rollouts.readers import read_rollout_files


def run_with(*scales, steps=8, size=(16, 8), same=0.0):
    """Normal rewards with these standard deviations. `same`: part that all rewards share."""

    def draw(random, step, size):
        common = same * random.standard_normal(size)
        rewards = [scale * (common + random.standard_normal(size)) for scale in scales]
        return {f"r{k}": values for k, values in enumerate(rewards)}

    return Run(draw, (), {}, steps=steps, size=size)


def only_verdict(analysis):
    (run,) = analysis.runs
    return analysis.verdict(run)


def printed(analysis):
    return " ".join(line.plain for line in rollouts_summary(analysis, width=500, room=40))


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
    assert "unchecked" not in run["verdict"]
    write_rollouts_report(analysis, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8").replace("<wbr>", "")
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
    (missing,) = only_verdict(analyze(read_rollout_files(tmp_path))).unchecked
    assert "64 groups" in missing.remedy
    assert "logging_steps" not in missing.remedy


def test_a_reward_that_never_varied_at_an_unknown_place_is_not_called_learned(tmp_path):
    folder = run_of(tmp_path, [1.0] * 6)
    verdict = only_verdict(analyze(read_rollout_files(folder)))
    assert verdict.action is Action.UNKNOWN
    assert "--range format=" in verdict.unchecked[0].remedy
    ranges = {"low": {"format": 0.0}, "high": {"format": 1.0}}
    known = analyze(read_rollout_files(folder), **ranges)
    verdict = only_verdict(known)
    assert (verdict.action, verdict.learned) == (Action.NOTHING, ("format",))
    assert "not checked" not in printed(known)
    for low, high in ((2.0, 3.0), (-1.0, 0.0)):
        ranges = {"low": {"format": low}, "high": {"format": high}}
        wrong = only_verdict(analyze(read_rollout_files(folder), **ranges))
        assert wrong.action is Action.UNKNOWN
        assert "wrong" in wrong.unchecked[0].reason


def test_the_ranges_of_several_rewards_are_asked_for_in_one_pair_of_options(tmp_path):
    """What is printed can be pasted, with numbers in the place of LOWEST and HIGHEST."""

    def draw(random, step, size):
        return {"form": np.ones(size), "tone": np.zeros(size), "style": random.random(size)}

    folder = write_run(tmp_path / "run", Run(draw, (), {}, steps=8))
    verdict = only_verdict(analyze(read_rollout_files(folder)))
    (missing,) = verdict.unchecked
    assert missing.check == "whether `form` and `tone` are learned"
    assert verdict.sentence == f"unknown: {missing.reason}. A{missing.remedy[1:]}"
    assert missing.reason.startswith("the ranges of `form` and `tone` are unknown")
    pasted = missing.remedy.removeprefix("add ").replace("LOWEST", "0").replace("HIGHEST", "1")
    options = ["analyze", str(folder), *shlex.split(pasted), "--output", "json"]
    printed = io.StringIO()
    with pytest.raises(SystemExit), contextlib.redirect_stdout(printed):
        main(options)
    (run,) = json.loads(printed.getvalue())["runs"]
    assert run["unchecked"] == []
    assert run["verdict"]["learned"] == ["form"]
    assert (run["verdict"]["action"], run["verdict"]["rewards"]) == ("change", ["tone"])
    assert "replayed" not in run["verdict"]["sentence"]


def test_a_range_of_turns_is_that_of_their_sum(tmp_path):
    def flat(random, groups):
        return np.full((groups, 4), 3), np.stack(
            np.broadcast_arrays(1.0, random.random((groups, 4, 3))), axis=-1
        )

    recorded(tmp_path, scenario=flat)
    (missing,) = only_verdict(analyze(read_rollout_files(tmp_path))).unchecked
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
    assert verdict_line(analysis).plain == f"verdict: {verdict.sentence}"
    assert "verdict" not in printed(analysis)


def test_a_share_whose_interval_contains_its_limit_needs_more_groups():
    verdict = only_verdict(analyzed(run_with(1, 50, steps=4, size=(32, 2))))
    assert (verdict.action, verdict.kind, verdict.rewards) == (Action.UNKNOWN, None, ("r0",))
    assert "128 groups are too few" in verdict.sentence
    assert "`r0` has a quarter of its weight share, or 5 % of the influence" in verdict.sentence
    both = replace(verdict, rewards=("r0", "r2")).sentence
    assert "`r0` and `r2` each have a quarter" in both


def test_a_scalar_reward_needs_its_parts(tmp_path):
    rows = [
        {"prompt": f"q{i // 4}", "completion": "x", "reward": float(r), "step": 1}
        for i, r in enumerate(np.random.default_rng(0).random(400))
    ]
    file = tmp_path / "1.jsonl"
    written.lines(file, rows)
    verdict = only_verdict(analyze(read_rollout_files(file)))
    assert verdict.action is Action.UNKNOWN
    assert "--rescore" in verdict.unchecked[0].remedy


def test_rewards_that_measure_the_same_call_for_a_change():
    verdict = only_verdict(analyzed(run_with(1, 1, same=10)))
    assert (verdict.action, verdict.kind) == (Action.CHANGE, Kind.REDUNDANT)
    assert set(verdict.rewards) == {"r0", "r1"}


def test_a_share_that_is_unknown_is_unclear():
    (reward,) = analyzed(run_with(1)).runs[0].rewards()
    assert _unclear([replace(reward, influence_share=nan)], ()) == [reward.name]


@pytest.mark.parametrize("ranges", [{}, {"low": {"form": 0.0}, "high": {"form": 2.0}}])
def test_a_constant_reward_is_one_more_warning_whether_its_range_is_known_or_not(tmp_path, ranges):
    def draw(random, step, size):
        constant = {"form": np.ones(size), "tone": np.ones(size)}
        return {**run_with(1, 100).draw(random, step, size), **constant}

    write_run(tmp_path, Run(draw, (), {}, steps=32))
    verdict = only_verdict(analyze(read_rollout_files(tmp_path), **ranges))
    assert (verdict.kind, verdict.rewards, verdict.more) == (Kind.IGNORED, ("r0",), 2)


@pytest.mark.parametrize(("share", "action"), [(0.24, Action.CHANGE), (0.26, Action.TRAIN)])
def test_a_setting_that_reaches_half_of_the_weight_share_is_trained_with(share, action):
    """It would have less than twice the present share."""
    found = {"weight_share": 0.5, "influence_share": 0.2, "influence_margin": 0.01}
    found |= {"groups": 64.0, "from_step": 40.0}
    remedies = (Remedy("gdpo", 1, share, 0.01, 64),)
    finding = Finding(Kind.IGNORED, Severity.WARNING, ("a",), "", "", found, (), remedies)
    verdict = _about(finding, BASE)
    assert (verdict.action, verdict.from_step, verdict.replayed) == (action, 40, 1)


def test_what_a_single_step_shows_calls_for_nothing():
    def draw(random, step, size):
        first = random.standard_normal(size)
        return {"a": first, "b": first if step == 3 else random.standard_normal(size)}

    analysis = analyzed(Run(draw, (), {}, steps=8, size=(16, 8)))
    (run,) = analysis.runs
    assert [held.finding.kind for held in run.findings()] == [Kind.REDUNDANT]
    assert only_verdict(analysis).action is Action.NOTHING


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
    remedy=Remedy("gdpo", 1, 0.24, 0.02, 64),
    trained=2,
)


def test_a_reward_that_is_only_watched_is_no_second_reward(tmp_path):
    write_run(tmp_path / "run", run_with(1, 2, steps=2))
    tables = read_rollout_files(tmp_path / "run")
    verdict = only_verdict(analyze(tables, weights={"r0": 1.0, "r1": 0.0}))
    assert (verdict.action, verdict.trained) == (Action.NOTHING, 1)
    assert "no second reward" in verdict.sentence


def test_the_sentence_names_the_setting_the_shares_and_the_groups():
    assert BASE.sentence == (
        'train with the estimator gdpo (in TRL: multi_objective_aggregation="normalize_then_sum"): '
        "`format` has 4 % ± 1 of the influence for 50 % of the weight. With this setting, it would "
        "have 24 % ± 2 on the same groups"
    )
    heavier = replace(BASE, remedy=Remedy("grpo", 5, 0.24, 0.02, 32), from_step=40, more=2)
    assert "train with the estimator grpo and 5 times the weight of `format`:" in heavier.sentence
    assert "over 64 groups from step 40" in heavier.sentence
    assert "on 32 of the groups" in heavier.sentence
    assert "(2 more warnings)" in heavier.sentence
    change = replace(BASE, action=Action.CHANGE, remedy=None)
    assert change.sentence == (
        "warm-start the policy on `format`, or use easier prompts or larger groups: `format` has "
        "4 % ± 1 of the influence for 50 % of the weight"
    )
    tried = replace(change, replayed=2).sentence
    assert tried == f"{change.sentence}, and no replayed setting helps enough"
    assert len({replace(change, causes=(c,)).sentence for c in Cause}) == len(Cause)


def test_a_run_that_has_learned_everything_says_so():
    learned = replace(BASE, action=Action.NOTHING, learned=("a", "b"))
    assert learned.sentence.endswith("`a` and `b` are learned")
    assert "each other reward" in replace(learned, trained=3).sentence


def test_each_kind_of_warning_has_something_to_do():
    for kind in Kind:
        verdict = replace(BASE, action=Action.CHANGE, kind=kind, rewards=("a", "b"), remedy=None)
        if kind not in (Kind.MOSTLY_MISSING, Kind.SATURATED):
            assert verdict.sentence


def test_the_most_urgent_of_several_runs_comes_first(tmp_path):
    for name, run in (("even", run_with(1, 1)), ("uneven", run_with(0.3, 1, 100, steps=32))):
        write_run(tmp_path / name, run)
    analysis = analyze(read_rollout_files(tmp_path))
    assert [analysis.verdict(run).action for run in analysis.runs] == ["nothing", "train"]
    assert analysis.worst_verdict() == analysis.verdict(analysis.runs[1])
    assert Analysis(analysis.report).worst_verdict() is None


def test_the_summary_fits_into_its_room_and_has_at_most_six_rewards():
    def draw(random, step, size):
        constant = {f"c{k}": np.full(size, float(k)) for k in range(5)}
        return {"a": random.random(size), "b": random.random(size), **constant}

    analysis = analyzed(Run(draw, (), {}, steps=8))
    for room in range(22, 40):
        lines = [line.plain for line in rollouts_summary(analysis, room=room)]
        assert len(lines) <= room
        assert any(line.startswith("not checked") for line in lines)
    assert "and 1 more reward (--output json prints all)" in lines


def of_two(rate, *, steps=40):
    """A run whose second reward has this rate of success at each step."""

    def draw(random, step, size):
        both = random.random((2, *size))
        return {
            "a": (both[0] < 0.5) * 1.0,
            "b": np.where(rate(step) != rate(step), np.nan, both[1] < rate(step)),
        }

    return Run(draw, (), {}, steps=steps, size=(16, 8))


def test_a_fault_that_has_ended_is_one_line_without_a_verdict_or_an_exit_code(tmp_path):
    run = of_two(lambda step: 0.5 if step >= 9 else 0.0)
    folder = write_run(tmp_path / "run", run)
    ranges = {"low": {"a": 0.0, "b": 0.0}, "high": {"a": 1.0, "b": 1.0}}
    analysis = analyze(read_rollout_files(folder), **ranges)
    (held,) = analysis.runs[0].findings()
    assert (held.past, held.finding.kind) == (True, Kind.OUT_OF_REACH)
    assert held.finding.severity is Severity.NOTE
    assert held.spans[0][0] == 1
    assert held.spans[-1][1] <= 31
    lines = [line.plain for line in rollouts_summary(analysis, width=500)]
    (line,) = [line for line in lines if "`b`" in line]
    assert line.startswith(f"- in steps 1 to {held.spans[-1][1]}: ")
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.more) == (Action.NOTHING, 0)
    options = ["--range", "a=0:1,b=0:1", "--output", "none", "--fail-on", "note"]
    with pytest.raises(SystemExit) as leaving, contextlib.redirect_stdout(io.StringIO()):
        main(["analyze", str(folder), *options])
    assert not leaving.value.code


def test_a_reward_that_fell_asleep_decides_the_verdict_with_the_groups_of_the_last_quarter():
    verdict = only_verdict(analyzed(of_two(lambda step: 0.5 if step <= 30 else 0.001)))
    assert verdict.kind in (Kind.OUT_OF_REACH, Kind.IGNORED)
    assert (verdict.rewards, verdict.from_step, verdict.of_groups) == (("b",), 31, 160)


def test_a_reward_that_is_missing_from_every_rollout_never_applies_or_only_at_first(tmp_path):
    folder = write_run(tmp_path / "run", of_two(lambda step: np.nan, steps=4))
    never = analyze(read_rollout_files(folder, rewards=["a", "b"]))
    verdict = only_verdict(never)
    assert (verdict.action, verdict.kind) == (Action.CHANGE, Kind.NEVER_APPLIES)
    write_rollouts_report(never, tmp_path / "page.html")
    assert "64 groups" in printed(never)
    some = analyzed(of_two(lambda step: np.nan if step % 8 else 0.5))
    (first,) = (h for h in some.runs[0].findings() if h.finding.kind is Kind.NEVER_APPLIES)
    assert (first.past, first.spans) == (True, ((1, 7),))


def test_the_worst_reward_of_a_kind_comes_first_whatever_the_order_of_the_columns():
    analysis = analyzed(run_with(0.02, 0.002, 1, size=(16, 64)))
    found = [held.finding.rewards for held in analysis.runs[0].findings()]
    assert found == [("r1",), ("r0",)]
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
    analysis = analyze(read_rollout_files(folder))
    verdict = only_verdict(analysis)
    reason = NoInterval.UNRELATED
    assert (verdict.action, verdict.no_interval) == (Action.UNKNOWN, reason)
    assert verdict.unknown.startswith(f"{reason}. ")
    assert f"no ±: {reason}" in printed(analysis)
    write_rollouts_report(analysis, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8").replace("<wbr>", "")
    assert f"no ±: {reason}" in page
    assert as_dict(analysis)["runs"][0]["verdict"]["no_interval"] == reason


def test_shares_that_few_groups_decide_have_no_interval_and_no_verdict():
    def draw(random, step, size):
        return {
            name: random.random(size) * (step < 2) * (np.arange(16)[:, None] < 8) for name in "ab"
        }

    (run,) = (analysis := analyzed(Run(draw, (), {}, steps=8, size=(16, 8)))).runs
    assert only_verdict(analysis).no_interval is NoInterval.FEW
    assert all(isnan(reward.influence_margin) for reward in run.rewards())
    assert only_verdict(analysis).action is not Action.NOTHING
