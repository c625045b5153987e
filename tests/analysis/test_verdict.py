"""What a run calls for, and which checks could not run."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.planted import Run, analyzed, write_run
from tests.analysis.rows import run_of

from gdpo.analysis import analyze, as_dict
from gdpo.analysis.verdict import Action, Verdict, worst
from gdpo.diagnostics.diagnosis import Cause, Kind, Remedy
from gdpo.report import write_rollouts_report
from gdpo.report.rollouts_summary import verdict_summary
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
    return " ".join(line.plain for line in verdict_summary(analysis, width=500))


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
    assert "16" in missing.reason
    assert "64 groups" in missing.needs
    assert "logging_steps=1" in missing.needs
    assert f"not checked: {missing}" in printed(analysis)
    (run,) = as_dict(analysis)["runs"]
    assert run["unchecked"] == [
        {"check": missing.check, "reason": missing.reason, "needs": missing.needs}
    ]
    assert (run["verdict"]["action"], run["verdict"]["groups"]) == ("unknown", 16)
    write_rollouts_report(analysis, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "logging_steps=1" in page.replace("<wbr>", "")
    assert "Verdict:" in page


def test_few_groups_in_steps_without_gaps_need_more_of_them():
    (missing,) = only_verdict(analyzed(run_with(1, 100, steps=2))).unchecked
    assert "64 groups" in missing.needs
    assert "logging_steps" not in missing.needs


def test_a_reward_that_never_varied_at_an_unknown_place_is_not_called_learned(tmp_path):
    folder = run_of(tmp_path, [1.0] * 6)
    verdict = only_verdict(analyze(read_rollout_files(folder)))
    assert verdict.action is Action.UNKNOWN
    assert "--low format=" in verdict.unchecked[0].needs
    ranges = {"low": {"format": 0.0}, "high": {"format": 1.0}}
    known = analyze(read_rollout_files(folder), **ranges)
    verdict = only_verdict(known)
    assert (verdict.action, verdict.learned) == (Action.NOTHING, ("format",))
    assert "not checked" not in printed(known)
    wrong = only_verdict(
        analyze(read_rollout_files(folder), low={"format": 2.0}, high={"format": 3.0})
    )
    assert wrong.action is Action.UNKNOWN


def test_the_ranges_of_all_rewards_are_asked_for_in_one_command(tmp_path):
    rows = [
        {"prompt": f"q{i // 4}", "completion": "x", "a_reward": 1.0, "b_reward": 2.0, "step": 1}
        for i in range(400)
    ]
    file = tmp_path / "1.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = only_verdict(analyze(read_rollout_files(file, rewards=["a_reward", "b_reward"])))
    (missing,) = verdict.unchecked
    assert "--low a_reward=LOWEST,b_reward=LOWEST --high a_reward=HIGHEST," in missing.needs


def test_a_reversed_reward_that_is_opposed_calls_for_priorities_and_no_estimator():
    def draw(random, step, size):
        common, noise = random.standard_normal((2, *size))
        return {"small": common + 0.3 * noise, "large": -10 * common + noise}

    verdict = only_verdict(analyzed(Run(draw, (), {}, steps=8, size=(16, 8))))
    assert (verdict.action, verdict.kind) == (Action.CHANGE, Kind.OPPOSED)
    assert set(verdict.rewards) == {"small", "large"}


@pytest.mark.parametrize(
    ("scales", "action", "trained"), [((1,), "nothing", 1), ((1, 1, 2), "nothing", 3)]
)
def test_nothing_is_to_do_with_one_reward_or_with_enough_influence_of_each(scales, action, trained):
    analysis = analyzed(run_with(*scales))
    verdict = only_verdict(analysis)
    assert (verdict.action, verdict.trained, verdict.unchecked) == (action, trained, ())
    assert printed(analysis).endswith(f"verdict: {verdict.sentence}")


def test_a_share_whose_interval_contains_half_of_the_weight_share_needs_more_groups():
    verdict = only_verdict(analyzed(run_with(1, 3.3)))
    assert (verdict.action, verdict.kind, verdict.rewards) == (Action.UNKNOWN, None, ("r0",))


def test_a_scalar_reward_needs_its_parts(tmp_path):
    rows = [
        {"prompt": f"q{i // 4}", "completion": "x", "reward": float(r), "step": 1}
        for i, r in enumerate(np.random.default_rng(0).random(400))
    ]
    file = tmp_path / "1.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = only_verdict(analyze(read_rollout_files(file)))
    assert verdict.action is Action.UNKNOWN
    assert "--rescore" in verdict.unchecked[0].needs


def test_rewards_that_measure_the_same_call_for_a_change():
    verdict = only_verdict(analyzed(run_with(1, 1, same=10)))
    assert (verdict.action, verdict.kind) == (Action.CHANGE, Kind.REDUNDANT)
    assert set(verdict.rewards) == {"r0", "r1"}


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


def test_the_sentence_names_the_setting_the_shares_and_the_groups():
    assert BASE.sentence == (
        "train with gdpo: `format` has 4 % ± 1 of the influence for 50 % of the weight, and with "
        "gdpo 24 % ± 2 on the same groups"
    )
    heavier = replace(BASE, remedy=Remedy("grpo", 5, 0.24, 0.02, 32), from_step=40, more=2)
    assert "train with 5 times the weight of `format`:" in heavier.sentence
    assert "over 64 groups from step 40" in heavier.sentence
    assert "on 32 of the groups" in heavier.sentence
    assert "(2 more warnings)" in heavier.sentence
    change = replace(BASE, action=Action.CHANGE, remedy=None)
    assert "4 % ± 1" in change.sentence
    assert "replayed" not in change.sentence
    assert "no replayed setting" in replace(change, tried=3).sentence
    assert len({replace(change, causes=(c,)).sentence for c in Cause}) == len(Cause)


def test_each_kind_of_warning_has_something_to_do():
    for kind in Kind:
        verdict = replace(BASE, action=Action.CHANGE, kind=kind, rewards=("a", "b"), remedy=None)
        if kind not in (Kind.MOSTLY_MISSING, Kind.TURN_COUNT, Kind.SATURATED, Kind.MERGED):
            assert verdict.sentence


def test_the_most_urgent_of_several_runs_comes_first():
    verdicts = [replace(BASE, action=action, run=action.value) for action in reversed(Action)]
    assert worst(verdicts).action is Action.TRAIN
    assert worst([]) is None
