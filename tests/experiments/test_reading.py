"""An experiment is read from run directories alone, whoever made the folder."""

import copy
import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.experiments.conftest import DECLARED, write_run
from tests.refusals import config_error, data_error
from tests.rollouts.readers import written

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.comparison import headline
from gdpo.lab.experiments.reading import (
    LOGS,
    ComparisonPlan,
    Label,
    estimator_of,
    failure_file,
    read_experiment,
    read_plan,
    run_name,
)
from gdpo.lab.report._summary import setup
from gdpo.lab.runs.lock import is_locked, lock, unlock


def write_plan(folder, labels, seeds=(1, 2), *, varied=()):
    ComparisonPlan("task: x", labels, seeds, 0.8, varied).write(folder)


def test_a_folder_of_runs_is_an_experiment(two_estimators):
    experiment = read_experiment(two_estimators)
    assert set(experiment.labels) == {"grpo", "gdpo"}
    assert experiment.seeds == (1, 2)
    assert experiment.total_steps == 4
    assert [(r.name, r.low, r.high) for r in experiment.rewards] == [
        ("format", 0.0, 1.0),
        ("correctness", -3.0, 3.0),
    ]
    assert_allclose(
        experiment.curves("gdpo", "format"), [[0.61, 0.71, 0.81, 0.91], [0.62, 0.72, 0.82, 0.92]]
    )
    assert {run.state for run in experiment.runs} == {"finished"}


def test_one_run_is_an_experiment_too(two_estimators):
    experiment = read_experiment(two_estimators / "gdpo-seed-2")
    assert (experiment.labels, experiment.seeds) == (("gdpo",), (2,))
    assert experiment.runs[0].steps == 4


def test_removed_keys_of_an_old_run_are_left_out_and_named(two_estimators):
    for file in two_estimators.glob("*/recipe.yaml"):
        old = "influence: {format: 1}\ndata:\n  near_duplicates: drop\n"
        file.write_text(file.read_text().replace("data:\n", old))
    alone = read_experiment(two_estimators)
    ComparisonPlan("task: x", alone.labels, alone.seeds).write(two_estimators)
    for experiment in (alone, read_experiment(two_estimators)):
        assert "removed recipe keys left out: influence, near_duplicates" in setup(experiment)


def test_a_plan_keeps_the_estimators_of_names_of_ones_own(tmp_path):
    plan = ComparisonPlan("task: x", ("grpo", Label("mine a=1", "m:e"), "gdpo a=1"), (1,), 0.8)
    plan.write(tmp_path)
    read = read_plan(tmp_path)
    assert read == plan
    assert [estimator_of(label) for label in read.labels] == ["grpo", "m:e", "gdpo"]


def test_a_label_keeps_its_estimator_in_copies():
    mine = Label("mine", "m:e")
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert (again, estimator_of(again)) == ("mine", "m:e")


def test_the_plan_names_runs_that_are_not_there_and_those_that_failed(two_estimators):
    plan = ComparisonPlan("task: x", ("grpo", "gdpo"), (1, 2, 3), 0.5)
    plan.write(two_estimators)
    assert read_plan(two_estimators) == plan
    shutil.rmtree(two_estimators / "grpo-seed-1")
    write_run(
        two_estimators, "gdpo", 3, {"format": [0.1], "correctness": [0.2]}, finished=False, steps=4
    )
    (two_estimators / LOGS).mkdir()
    for seed in (1, 2):  # of which the first was finished by hand
        failure = failure_file(two_estimators, "gdpo", seed)
        failure.write_text('{"why": "out of memory"}')
    unfinished = json.dumps({"rewards": DECLARED})
    (two_estimators / "gdpo-seed-2" / "environment.json").write_text(unfinished)
    experiment = read_experiment(two_estimators)
    assert experiment.labels == ("grpo", "gdpo")
    assert experiment.reach == 0.5
    states = {(run.label, run.seed): (run.state, run.why, run.steps) for run in experiment.runs}
    assert states == {
        ("grpo", 1): ("waiting", "", 0),
        ("grpo", 2): ("finished", "", 4),
        ("grpo", 3): ("waiting", "", 0),
        ("gdpo", 1): ("finished", "", 4),
        ("gdpo", 2): ("failed", "out of memory", 4),
        ("gdpo", 3): ("interrupted", "", 1),
    }
    assert np.isnan(experiment.curves("gdpo", "format")[2, 1:]).all()
    for text in ("{", "{}", "[]"):
        failure.write_text(text)
        whys = {run.why for run in read_experiment(two_estimators).runs}
        assert whys == {"", f"{failure} cannot be read"}


def test_steps_that_were_not_logged_or_hold_no_number_are_nan(tmp_path):
    path = write_run(tmp_path, "gdpo", 1, {"format": [0.5, None, 0.7]})
    lines = (path / "metrics.jsonl").read_text().splitlines()
    late = json.dumps({"step": 6, "loss": 0.0, "rewards/format/mean": 0.9})
    (path / "metrics.jsonl").write_text("\n".join([*lines, late, '{"step": 7, "lo']))
    curve = read_experiment(tmp_path).runs[0].means["format"]
    assert_array_equal(curve, [0.5, np.nan, 0.7, np.nan, np.nan, 0.9])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ([], ""),
        ({"rewards": {}}, "range"),
        ({"rewards": [["format", 0, 1]]}, "range"),
        ({"rewards": {"format": [0, 1]}}, "range"),
        ({"rewards": {"format": {"low": 1, "high": 0}}}, "range"),
        ({"rewards": {"format": {"low": "0", "high": 1}}}, "range"),
        ({"rewards": {"format": {"low": 0, "high": 10**400}}}, "range"),
    ],
)
def test_a_run_without_the_ranges_of_its_rewards_is_named(tmp_path, facts, message):
    path = write_run(tmp_path, "gdpo", 1, {"format": [0.5, 2.5]})
    (path / "environment.json").write_text(json.dumps(facts))
    with data_error(rf"environment\.json .*{message}"):
        read_experiment(tmp_path)


def test_what_cannot_be_compared_is_refused(tmp_path, two_estimators):
    with config_error("nowhere"):
        read_experiment(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with data_error("contains no run"):
        read_experiment(tmp_path / "empty")
    write_run(two_estimators, "gdpo", 9, {"format": [1.0]})
    with data_error(r"estimator and seed.*rewards"):
        read_experiment(two_estimators)
    shutil.rmtree(two_estimators / "gdpo-seed-9")
    write_run(two_estimators, "gdpo", 1, {"format": [1.0], "correctness": [1.0]}, name="again")
    with data_error(r"gdpo with seed 1"):
        read_experiment(two_estimators)


PLAN = {
    "recipe": "task: x",
    "labels": ["gdpo"],
    "estimators": {},
    "seeds": [1],
    "reach": 0.8,
    "varied": [],
}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("{", ""),
        *((text, "object") for text in ("[]", "null", "3", '"grpo"')),
        *(
            (json.dumps({**PLAN, key: value}), f"'{key}'")
            for key in ("labels", "seeds")
            for value in ("grpo", "12", [], None, {"grpo": 1})
        ),
    ],
)
def test_a_broken_plan_is_named(tmp_path, saved, plan, message):
    saved("comparison.json", plan)
    with data_error(rf"comparison\.json .*{message}"):
        read_plan(tmp_path)


def test_a_plan_of_which_no_run_is_there_has_not_started(tmp_path, saved):
    saved("comparison.json", json.dumps(PLAN))
    with data_error("has started yet"):
        read_experiment(tmp_path)


def test_runs_of_other_models_or_lengths_are_not_compared(two_estimators):
    write_run(two_estimators, "mo_grpo", 1, {"format": [0.0], "correctness": [0.0]}, steps=9)
    with data_error(r"trainer.max_steps is 4 and 9|trainer.max_steps is 9 and 4"):
        read_experiment(two_estimators)


def test_a_run_that_is_being_trained_is_running(two_estimators, holder):
    write_plan(two_estimators, ("grpo", "gdpo"))
    path = two_estimators / "gdpo-seed-1"
    process = holder(path)
    states = {run.path: run.state for run in read_experiment(two_estimators).runs}
    assert states[path] == "running"
    assert list(states.values()).count("finished") == 3
    with config_error("another process trains in"):
        lock(path)
    process.communicate()
    assert {run.state for run in read_experiment(two_estimators).runs} == {"finished"}
    lock(path)
    assert is_locked(path)
    unlock(path)
    assert not is_locked(path)


def test_strange_lines_of_metrics_are_left_out(tmp_path):
    path = write_run(tmp_path, "gdpo", 1, {"format": [0.5, 0.6]})
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'[1, 2]\n"text"\n{"loss": 0.0, "rewards/format/mean": 0.9}\n')
        file.write(
            '{"step": 3, "loss": 0.0, "note": "a\u2028b", "rewards/format/mean": 0.7}\n'.encode()
        )
        file.write('{"step": 4, "note": "\u00e9'.encode()[:-1])
    assert_array_equal(read_experiment(tmp_path).runs[0].means["format"], [0.5, 0.6, 0.7])


WEIGHTED = ("gdpo format.weight=1", "gdpo format.weight=0.5")


def weighted(folder, weight, seed, *, gate=None, level=0.5):
    """A run whose format has a weight of its own, and a gate."""
    entries = [{"name": "format", "weight": weight, "gate": gate}, {"name": "correctness"}]
    curves = {"format": [level + seed / 100] * 4, "correctness": [0.1 * seed] * 4}
    label = f"gdpo format.weight={weight:g}"
    write_run(folder, label, seed, curves, entries=entries, lengths=[(7.0, 9.0)] * 4)
    return label


def test_labels_may_differ_in_the_varied_keys_and_in_nothing_else(tmp_path):
    for weight in (1.0, 0.5):
        for seed in (1, 2):
            weighted(tmp_path, weight, seed)
    write_plan(tmp_path, WEIGHTED, varied=("rewards.0.weight",))
    experiment = read_experiment(tmp_path)
    assert [reward.weight for reward in experiment.rewards] == [None, 1.0]
    assert [(run.label, run.seed) for run in experiment.runs] == [
        (a, s) for a in WEIGHTED for s in (1, 2)
    ]
    write_plan(tmp_path, WEIGHTED)
    with data_error(r"rewards\.0\.weight is 1\.0 and 0\.5"):
        read_experiment(tmp_path)


def test_runs_started_by_hand_are_labelled_by_their_weights_and_gates(tmp_path):
    gate = {"on": "correctness", "at_least": 1.0}
    for weight, its_gate in ((0.25, None), (1.0, None), (0.5, None), (1.0, gate)):
        entries = [{"name": "rewards:format", "weight": weight, "gate": its_gate}]
        entries += [{"name": "correctness"}]
        for seed in (1, 2):
            name = f"{weight}-{its_gate is None}-{seed}"
            curves = {"format": [0.5] * 4, "correctness": [0.5] * 4}
            write_run(tmp_path, "gdpo", seed, curves, entries=entries, name=name, declared=DECLARED)
    experiment = read_experiment(tmp_path)
    assert experiment.labels == (
        "gdpo format.weight=1 format.gate=null",
        "gdpo format.weight=1 format.gate={on: correctness, at_least: 1}",
        "gdpo format.weight=0.5 format.gate=null",
        "gdpo format.weight=0.25 format.gate=null",
    )
    assert [run.seed for run in experiment.runs] == [1, 2] * 4
    assert experiment.unlike == {(experiment.labels[1], "format")}


def test_a_reward_with_another_gate_than_the_baseline_is_not_compared(tmp_path):
    for seed in range(5):
        weighted(tmp_path, 1.0, seed)
        weighted(tmp_path, 0.5, seed, gate={"on": "correctness", "at_least": 1}, level=0.9)
    varied = ("rewards.0.weight", "rewards.0.gate", "rewards.0.gate.on", "rewards.0.gate.at_least")
    write_plan(tmp_path, WEIGHTED, tuple(range(5)), varied=varied)
    comparison = analyse(read_experiment(tmp_path))
    assert comparison.experiment.unlike == {(WEIGHTED[1], "format")}
    assert [(d.label, d.reward) for d in comparison.differences] == [(WEIGHTED[1], "correctness")]
    assert comparison.differences[0].p_adjusted == comparison.differences[0].p_value
    everything = replace(
        comparison.experiment, unlike=frozenset((WEIGHTED[1], r) for r in ("format", "correctness"))
    )
    assert headline(analyse(everything)).startswith("No reward")


def test_the_range_of_a_reward_holds_for_all_labels(tmp_path):
    for weight, low in ((1.0, 0.5), (0.5, 0.0)):
        label = f"gdpo format.weight={weight:g}"
        declared = {"format": {"low": low, "high": 1.0}}
        entries = [{"name": "format", "weight": weight}]
        write_run(tmp_path, label, 1, {"format": [0.6]}, entries=entries, declared=declared)
    write_plan(tmp_path, WEIGHTED, (1,), varied=("rewards.0.weight",))
    [reward] = read_experiment(tmp_path).rewards
    assert (reward.low, reward.high) == (0.0, 1.0)


def test_the_lengths_of_the_completions_are_read_step_by_step(tmp_path):
    label = weighted(tmp_path, 1.0, 1)
    write_plan(tmp_path, (label,))
    experiment = read_experiment(tmp_path)
    assert_array_equal(experiment.curves(label, "mean", "lengths"), [[7.0] * 4, [np.nan] * 4])
    assert_array_equal(experiment.curves(label, "max", "lengths"), [[9.0] * 4, [np.nan] * 4])


def read_with(metrics, folder):
    """Read a comparison of one run that has these metrics, too, by step from the second on."""
    label = weighted(folder, 1.0, 1)
    file = folder / run_name(label, 1) / "metrics.jsonl"
    first, *rows = (json.loads(line) for line in file.read_text().splitlines())
    changed = [first, *(row | more for row, more in zip(rows, metrics, strict=True))]
    written.lines(file, changed)
    write_plan(folder, (label,), (1,))
    experiment = read_experiment(folder)
    return experiment, experiment.runs[0]


def test_the_weights_that_change_are_read_from_the_metrics(tmp_path):
    changing = [{"rewards/a/b/weight": 1.0 + place, "other/weight": 0.1} for place in range(3)]
    experiment, run = read_with(changing, tmp_path)
    assert set(run.weights) == {"a/b"}
    assert_array_equal(experiment.curves(run.label, "a/b", "weights"), [[np.nan, 1, 2, 3]])


def test_the_account_is_read_from_the_metrics(tmp_path):
    _, run = read_with([{}, {"account/a/b/by/c": 0.5}, {}], tmp_path)
    assert set(run.account) == {"a/b/by/c"}
    assert_array_equal(run.account["a/b/by/c"], [np.nan, np.nan, 0.5, np.nan])


@pytest.mark.parametrize(
    ("label", "folder"),
    [
        ("gdpo", "gdpo-seed-1"),
        ("mine:estimator", "mine_estimator-seed-1"),
        ("gdpo lora={r: 8}", "gdpo_lora_r_8_-seed-1"),
    ],
)
def test_the_folder_of_a_run_is_named_after_its_label(label, folder):
    assert run_name(label, 1) == folder


def test_long_labels_have_different_folders():
    names = {run_name(f"gdpo data.source={'x' * 300}{end}", 1) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 160
