"""What a run's rewards did, against numbers that were worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.printed import lines_of
from tests.analysis.rows import LEARNED, ROWS, STUCK, run_of
from tests.refusals import config_error, data_error
from tests.rollouts.built import rollout

from gdpo.analysis import analyze, analyze_steps
from gdpo.diagnostics import diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.rollouts import read_rollouts, rollout_file, write_rollouts
from gdpo.rollouts.readers import read_rollout_files
from gdpo.rollouts.table import UNKNOWN_WEIGHTS


@pytest.fixture
def dump(tmp_path, saved):
    for step in (1, 2):
        records = [
            {"step": s, "prompt": p, "wide": w, "narrow": n, "length": t}
            for s, p, w, n, t in ROWS
            if s == step
        ]
        saved(f"step_{step}.jsonl", records)
    return tmp_path


def read(path):
    columns = {"prompt": "prompt", "num_tokens": "length"}
    return read_rollout_files(path, rewards=["wide", "narrow"], columns=columns)


def test_every_reward_has_its_numbers_over_all_steps(dump):
    (run,) = analyze(read(dump)).runs
    assert (run.steps, run.rollouts, run.recorded) == ([1, 2], 8, 0)
    assert run.estimators == ("grpo",)
    assert run.weights_from == UNKNOWN_WEIGHTS
    wide, narrow = run.rewards
    assert (wide.mean, wide.missing, wide.groups, wide.zero_variance_groups) == (5.0, 0.0, 4, 1)
    assert narrow.mean == pytest.approx(2 / 6)
    assert narrow.missing == pytest.approx(2 / 8)
    assert (narrow.groups, narrow.zero_variance_groups) == (3, 1)
    assert wide.weight_share == narrow.weight_share == 0.5
    # 10 more tokens with 10 more reward, 20 fewer with none; then 10 and 20 more with 10.
    step_1 = (5 * 5 + 5 * 5) / np.sqrt((25 + 25) * (25 + 25 + 100 + 100))
    step_2 = (25 + 25 + 50 + 50) / np.sqrt(100 * (25 + 25 + 100 + 100))
    assert wide.with_length == pytest.approx((step_1 + step_2) / 2)
    assert run.num_tokens.tolist() == [17.5, 17.5]
    assert np.isnan(run.truncated).all()


def about_format(folder, **bounds):
    """What is found of `format`."""
    (run,) = analyze(read_rollout_files(folder), **bounds).runs
    (found,) = (h.finding for h in run.findings if h.finding.rewards == ("format",))
    return found


def test_what_is_said_of_a_range_goes_before_what_is_recorded(tmp_path):
    run = run_of(tmp_path, [1.0] * 10, declared={"format": {"low": 0, "high": 1}})
    assert about_format(run).kind is Kind.SATURATED
    assert about_format(run, high={"format": 2.0}).kind is Kind.CONSTANT
    assert about_format(run, low={"format": 0.0}, high={"format": 30.0}).kind is Kind.OUT_OF_REACH


@pytest.mark.parametrize(
    ("rates", "kind", "severity"),
    [
        (LEARNED, Kind.SATURATED, Severity.NOTE),
        ([0.3 + 0.05 * step for step in range(14)] + [0.995] * 20, Kind.SATURATED, Severity.NOTE),
        (STUCK, Kind.CONSTANT, Severity.WARNING),
        ([1 - rate for rate in LEARNED], Kind.OUT_OF_REACH, Severity.WARNING),
    ],
)
def test_of_an_unknown_range_the_highest_value_of_the_run_is_the_top(
    rates, kind, severity, tmp_path
):
    """A reward that never varied may be anywhere. One that is learned had little effect since."""
    finding = about_format(run_of(tmp_path, rates))
    assert (finding.kind, finding.severity) == (kind, severity)
    assert ("saturation" in finding.evidence) == (kind is not Kind.CONSTANT)


def test_what_was_ignored_before_it_was_learned_is_still_told(tmp_path):
    """It varies in 1 of 25 groups for 20 steps, and is learned then."""
    (run,) = analyze(read_rollout_files(run_of(tmp_path, [0.004] * 20 + [1.0] * 8))).runs
    found = {h.finding.kind: h for h in run.findings if h.finding.rewards == ("format",)}
    assert set(found) == {Kind.IGNORED, Kind.SATURATED} or set(found) == {
        Kind.OUT_OF_REACH,
        Kind.SATURATED,
    }
    early = found.get(Kind.IGNORED) or found[Kind.OUT_OF_REACH]
    assert early.certain
    assert early.spans[-1][1] < 28
    assert early.finding.evidence["from_step"] == 17
    assert found[Kind.SATURATED].spans == ((22, 28),)
    assert run.learned == ("format",)


def test_estimators_that_need_the_ranges_are_told_those_of_the_record(tmp_path):
    known = {"low": 0, "high": 1}
    run = run_of(tmp_path, LEARNED, declared={"format": known, "noise": known})
    (one,) = analyze(read_rollout_files(run), replayed=["sa_mrpo"]).replayed
    assert (one.problem, one.steps) == ("", 10)


def test_a_reward_goes_with_length_as_far_as_both_are_known(saved):
    """In groups of unequal size, with values that are missing, and one that never varies."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=(size, 3)) for size in (2, 3, 5, 8)]
    for group in groups:
        group[:, 2] = group[0, 0] * 0.1  # of no spread, but for rounding
    records = [
        {
            "prompt": str(p),
            "noisy": None if s == 1 and p else noisy,
            "flat": flat,
            "length": None if s == 2 else length,
        }
        for p, group in enumerate(groups)
        for s, (noisy, length, flat) in enumerate(group.tolist())
    ]
    columns = {"prompt": "prompt", "num_tokens": "length"}
    path = saved("a.jsonl", records)
    reading = read_rollout_files(path, rewards=["noisy", "flat"], columns=columns)
    (step,) = analyze_steps(reading)
    kept = [np.delete(g[:, :2], [1, 2] if p else [], axis=0) for p, g in enumerate(groups)]
    kept = [group - group.mean(axis=0) for group in kept]
    a, b = np.concatenate(kept).T
    assert step.with_length[0] == pytest.approx(
        np.sum(a * b) / np.sqrt(np.sum(a**2) * np.sum(b**2))
    )
    assert np.isnan(step.with_length[1])


def test_over_time_is_what_each_diagnosis_says(dump):
    first_step = next(analyze_steps(read(dump)))
    (run,) = analyze(read(dump)).runs
    first = np.array([[[0, 0], [10, 0]], [[5, 0], [5, 1]]], float)
    expected = diagnose(first, None, ["wide", "narrow"], estimator="grpo")
    assert first_step.diagnosis.as_dict() == expected.as_dict()
    assert run.over_time["wide"]["influence_share"][0] == expected.rewards[0].influence_share
    np.testing.assert_array_equal(run.over_time["narrow"]["missing"], [0, 0.5])


def test_weights_are_asked_for_or_those_of_the_dump(dump):
    step = next(analyze_steps(read(dump), weights={"wide": 0.25}))
    assert [reward.weight for reward in step.diagnosis.rewards] == [0.25, 1.0]
    assert step.weights_from == "as given, others 1"
    with config_error("did you mean 'wide'"):
        list(analyze_steps(read(dump), weights={"wid": 1}))


def test_a_weight_that_is_not_asked_for_is_that_of_the_dump(tmp_path):
    weights = {"x": 2.0, "y": 0.5}
    rollouts = [rollout(1, 0, i, {"x": float(i), "y": -i}, weights=weights) for i in range(2)]
    write_rollouts(rollout_file(tmp_path, 1), rollouts)
    (step,) = analyze_steps(read_rollout_files(tmp_path), weights={"x": 3})
    assert [reward.weight for reward in step.diagnosis.rewards] == [3.0, 0.5]
    assert step.weights_from == "as given, others recorded"


def test_weights_that_change_are_shown_with_their_first_and_last_value(tmp_path):
    run_of(tmp_path, [0.5] * 4)
    for step, weight in ((3, 0.5), (4, 0.25)):
        file = rollout_file(tmp_path, step)
        rollouts = [
            replace(each, weights={"format": weight, "noise": 1.0}) for each in read_rollouts(file)
        ]
        write_rollouts(file, rollouts)
    analysis = analyze(read_rollout_files(tmp_path))
    (run,) = analysis.runs
    assert run.weight_changes() == {"format": (1.0, 0.25)}
    assert "weights change: format 1 → 0.25" in lines_of(analysis, 200)


def test_steps_with_and_without_weights_are_both_told(tmp_path, saved):
    for step in (1, 2):
        rollouts = [rollout(step, 0, i, {"x": float(i)}, weights={"x": 2.0}) for i in range(2)]
        write_rollouts(rollout_file(tmp_path, step), rollouts)
    rows = [{"step": 3, "prompt": "a", "score": float(i)} for i in range(2)]
    saved("3.jsonl", rows)
    (run,) = analyze(read_rollout_files(tmp_path)).runs
    assert run.weights_from == f"recorded in 2 of 3 steps; {UNKNOWN_WEIGHTS} in 1 of 3 steps"


def test_a_reward_that_comes_late_is_missing_before(tmp_path, saved):
    for step in range(1, 5):
        rows = [
            {"step": step, "prompt": "a", "a": float(i), **({"b": 1.0 * i} if step > 3 else {})}
            for i in range(4)
        ]
        saved(f"step_{step}.jsonl", rows)
    (run,) = analyze(read_rollout_files(tmp_path, columns={"prompt": "prompt"})).runs
    assert [(reward.name, reward.missing) for reward in run.rewards] == [("a", 0.0), ("b", 0.75)]


def test_steps_of_files_that_each_begin_anew_are_put_in_order(tmp_path, saved):
    """As where each rank writes a file: the mean rises from 0 to 5, two rewards become alike."""
    for rank in range(2):
        records = [
            {"step": s, "prompt": str(p), "a": s + i % 2, "b": i % 2 if s > 3 else i % 3}
            for s in range(6)
            for p in range(4)
            for i in range(4)
        ]
        saved(f"rank{rank}.jsonl", records)
    steps = analyze_steps(read_rollout_files(tmp_path, rewards=["a", "b"]))
    assert [step.step for step in steps] == [0, 1, 2, 3, 4, 5] * 2
    (run,) = analyze(read_rollout_files(tmp_path, rewards=["a", "b"])).runs
    assert run.steps == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert run.over_time["a"]["mean"].tolist() == [step + 0.5 for step in run.steps]
    (a, _) = run.rewards
    assert (a.first, a.last) == (0.5, 5.5)
    (redundant,) = [h for h in run.findings if h.finding.kind is Kind.REDUNDANT]
    assert (redundant.in_a_row, redundant.spans) == (4, ((9, 12),))


def test_advantages_of_the_dump_are_those_that_count(saved):
    record = {"input": "a", "output": "b", "gts": None, "step": 1}
    lines = [{**record, "score": float(i), "advantage": -float(i), "acc": i} for i in range(4)]
    path = saved("1.jsonl", lines)
    reading = read_rollout_files(path, rewards=["acc"], columns={"advantage": "advantage"})
    (step,) = analyze_steps(reading)
    assert step.recorded
    assert step.diagnosis.estimator is None
    assert step.diagnosis.rewards[0].influence < 0


def test_steps_without_rewards_are_passed_over(tmp_path, saved):
    saved("a.csv", "prompt,answer\nx,y\n")
    reading = read_rollout_files(tmp_path, columns={"prompt": "prompt"})
    assert list(analyze_steps(reading)) == []
    assert "1 rollouts have no known reward" in str(reading.report)


def test_one_huge_group_among_many_is_no_array(tmp_path, saved):
    rows = "".join(f"p{i},1\n" for i in range(4000)) + "q,1\n" * 4000
    saved("a.csv", "prompt,reward\n" + rows)
    reading = read_rollout_files(tmp_path)
    with data_error("4,000"):
        list(analyze_steps(reading))


def test_the_interval_of_steps_with_one_group_is_that_of_their_groups(saved):
    """The variance of a step with one group comes from its difference to the previous step."""
    rng = np.random.default_rng(0)
    values = rng.random((200, 4, 2))

    def influence(name, step_of):
        rows = [
            {"step": step_of(i), "prompt": f"p{i}", "a": a, "b": b}
            for i, group in enumerate(values)
            for a, b in group
        ]
        reading = read_rollout_files(saved(name, rows), rewards=["a", "b"])
        (run,) = analyze(reading).runs
        return run.influence

    alone = influence("alone.jsonl", lambda i: i + 1)
    together = influence("together.jsonl", lambda i: 1 + i // 20)
    np.testing.assert_allclose(alone.shares, together.shares)
    np.testing.assert_allclose(alone.margins, together.margins, rtol=0.2)
    assert together.margins.min() > 0.01
