"""Logs are read in every form in which people store and paste them; see golden_forms/README."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.rows import runs_at
from tests.refusals import data_error

from gdpo.analysis.logs import rows as rows_of_logs
from gdpo.analysis.logs.sources import read_logs
from gdpo.rollouts.readers import read_rollout_files

FORMS = Path(__file__).parent / "golden_forms"
ONE_RUN = {
    "pasted.jsonl": "JSON",
    "pasted.json": "JSON",
    "trainer_state.json": "trainer_state.json",
    "console.log": "console output",
    "console_5.txt": "console output",
    "notebook.tsv": "CSV",
    "logging.jsonl": "JSON",
    "history.csv": "W&B",
    "history.parquet": "W&B",
    "spreadsheet.csv": "W&B",
}
WITHOUT_STEP = {"pasted.jsonl", "pasted.json", "console.log", "console_5.txt"}
STEPS = np.arange(1, 21)
TRUTH = {"accuracy": 0.2 + STEPS / 100, "format": 0.9 - STEPS / 40}


def is_true(run, factor=1.0):
    assert run.steps.tolist() == STEPS.tolist()
    assert set(run.rewards) == set(TRUTH)
    for name, means in TRUTH.items():
        np.testing.assert_allclose(run.rewards[name]["mean"], factor * means, rtol=2e-4)


@pytest.mark.parametrize("name", ONE_RUN)
def test_each_form_has_the_same_means_and_no_rollouts(name):
    reading = read_rollout_files(FORMS / name)
    assert list(reading) == []
    assert reading.report.unrecognized == []
    (run,) = runs_at(FORMS / name)
    is_true(run)
    assert run.log.source == ONE_RUN[name]
    assert run.log.numbered == (name in WITHOUT_STEP)


OTHER_NAMES = [(n, f"mine{Path(n).suffix}") for n in ONE_RUN if n != "trainer_state.json"]
OTHER_NAMES += [("console.log", "mine"), ("console.log", "a.out"), ("pasted.jsonl", "a.txt")]


@pytest.mark.parametrize(("name", "other"), OTHER_NAMES)
def test_the_content_decides_and_not_the_name(tmp_path, name, other):
    content, file = (FORMS / name).read_bytes(), tmp_path / other
    file.write_bytes(content)
    is_true(*runs_at(file))
    if name != "history.parquet":
        file.write_bytes(b"\xef\xbb\xbf" + content)
        is_true(*runs_at(file))
    packed = tmp_path / f"{other}.gz"
    packed.write_bytes(gzip.compress(content))
    is_true(*runs_at(packed))


def test_the_charts_of_a_run_are_joined(tmp_path):
    for name in ("accuracy", "format"):
        shutil.copy(FORMS / f"chart_{name}.csv", tmp_path)
    for paths in ([tmp_path], sorted(tmp_path.iterdir())):
        runs = {run.log.run: run for run in runs_at(*paths)}
        is_true(runs["grpo - seed 1"])
        is_true(runs["other"], 0.5)
        assert len(runs) == 2
    (first, _) = runs_at(FORMS / "chart_accuracy.csv")
    assert list(first.rewards) == ["accuracy"]


def test_console_output_is_read_if_a_folder_has_nothing_else(tmp_path):
    shutil.copy(FORMS / "console.log", tmp_path)
    is_true(*runs_at(tmp_path))
    shutil.copy(FORMS / "history.csv", tmp_path)
    (run,) = runs_at(tmp_path)
    assert (run.log.source, run.copies) == ("W&B", ())


OF_PAIRS = {f"rewards/{name}": 0.5 for name in ("chosen", "rejected", "margins", "accuracies")}


@pytest.mark.parametrize(
    ("row", "means"),
    [
        ({"step": 1, "rewards/a/mean": 0.5, "rewards/a": 9.0, "rewards/a/max": 1.0}, [[0.5]]),
        (
            {
                "_step": 1,
                "_runtime": 2.5,
                "rewards/a/mean": 0.5,
                "completions": "{'_type': 'table'}",
            },
            [[0.5]],
        ),
        ({"step": 1, "loss": 0.1, "grad_norm": 1.0, **OF_PAIRS, "logps/chosen": -5.0}, []),
        ({"step": 1, "loss": 0.1, "epoch": 1, "rewards/a/max": 0.5, "rewards/mean": 0.5}, []),
        ({"step": 1, "loss": 0.1, "rewards/a/mean": 0.5, "prompt": None}, [[0.5]]),
    ],
)
def test_only_means_of_rewards_are_rewards(saved, row, means):
    file = saved("x.jsonl", [row])
    runs = runs_at(file)
    assert [[of["mean"][0] for of in run.rewards.values()] for run in runs] == means
    assert list(read_rollout_files(file)) == []


@pytest.mark.parametrize(
    ("row", "like"),
    [
        ({"step": 1, "rewards/a": 0.5, "rewards/b": 1.0}, "'rewards/a', 'rewards/b'"),
        ({"step": 1, "quality_reward": 0.5, "loss": 1.0}, "'loss'"),
        ({"step": 1, "prompt": "p", "rewards/a/mean": 0.5}, "'rewards/a/mean'"),
        ({"step": 1, "reward": 0.5, "learning_rate": 1.0}, "'learning_rate'"),
        ({"step": 1, "env/all/a": 0.5, "env/all/b": 0.5}, "'env/all/a', 'env/all/b'"),
        ({"Step": 1, "my run - train/reward": 0.5}, "'my run - train/reward'"),
    ],
)
def test_rows_that_may_be_either_are_neither(saved, row, like):
    file = saved("x.jsonl", [row] * 3)
    reading = read_rollout_files(file)
    assert list(reading) == []
    assert reading.report.unrecognized == []
    with data_error("metrics of whole steps, or rollouts") as error:
        read_logs([file])
    assert like in str(error.value)
    assert len(read_logs([file], forced=True)) == 1


def test_rows_that_repeat_each_step_may_be_rollouts(saved):
    rows = [{"step": i // 8, "rewards/a/mean": i % 3, "grad_norm": 1.0} for i in range(64)]
    file = saved("x.jsonl", rows)
    with data_error("56 rows repeat the step of another row"):
        read_logs([file])
    with data_error("5 rows repeat the step of another row"):
        read_logs([saved("x.jsonl", rows[:6])])
    assert len(read_logs([saved("x.jsonl", rows[:5])])) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "completion": "c", "rewards/a": 1.0, "kl": 0.1, "loss": 0.5},
        {"group": 1, "rewards/a": 1.0, "kl": 0.1, "entropy": 0.5},
        {"question": "q", "response": "r", "reward": 0.5, "learning_rate": 1e-6, "epoch": 1},
        {"step": 1, "prompt_id": 3, "reward_a": 0.5, "grad_norm": 0.1},
    ],
)
def test_rollouts_beside_numbers_of_their_step_are_rollouts(saved, row):
    file = saved("x.jsonl", [row] * 4)
    assert [len(table) for table in read_rollout_files(file)] == [4]
    assert read_logs([file]) == []


def test_several_runs_in_one_file_are_several_runs(saved):
    rows = [
        f"{run},{step},{0.5 * step + seed},1\n"
        for seed, run in enumerate(("first", "second"))
        for step in range(8)
    ]
    runs = runs_at(saved("x.csv", "run_name,step,rewards/a/mean,grad_norm\n" + "".join(rows)))
    assert {run.log.run: run.rewards["a"]["mean"][1] for run in runs} == {
        "first": 0.5,
        "second": 1.5,
    }


def test_console_output_in_utf_16_is_refused_with_a_way_to_convert_it(tmp_path):
    file = tmp_path / "x.log"
    file.write_text((FORMS / "console.log").read_text(), encoding="utf-16")
    with data_error(r"UTF-16: write it in UTF-8, for example with\s+iconv"):
        read_logs([file])


@pytest.mark.parametrize("text", ["{" * 2**22, "{'a': " * 10**6, "'" * 2**22, "{'a': 1,\n" * 10**5])
def test_hostile_console_output_ends(saved, text):
    assert read_logs([saved("x.log", text)]) == []


def test_only_rows_with_rewards_are_numbered(saved):
    rows = [{"loss": 0.1, "epoch": i, "rewards/a": i / 9} for i in range(3)]
    between = {"eval_loss": 0.5, "epoch": 1}
    (run,) = runs_at(saved("x.log", "\n".join(f"{row}\n{between}" for row in rows)))
    assert run.steps.tolist() == [1, 2, 3]


def test_of_a_long_text_only_the_start_is_read(saved, monkeypatch):
    monkeypatch.setattr(rows_of_logs, "_PRINTED", 1000)
    file = saved("x.log", "x" * 2000 + (FORMS / "console.log").read_text())
    assert read_logs([file]) == []


def of_steps(step, *names):
    """One row a step, with a mean of each name that grows to 0.4."""
    return [{step: i, **dict.fromkeys(names, i / 100)} for i in range(1, 41)]


def means_of(file):
    (run,) = runs_at(file)
    return {name: of["mean"][-1] for name, of in run.rewards.items()}


@pytest.mark.parametrize(
    ("columns", "rewards"),
    [
        ("step reward reward_a reward_b", "a b"),
        ("step mean_reward a_reward_func_mean b_reward_func_mean", "a_reward_func b_reward_func"),
        ("iteration reward_step_reward_func reward_b", "step_reward_func b"),
        ("global_step total_reward avg_reward_a mean_reward_b reward_b_std", "a b"),
        ("epoch loss kl lr avg_reward reward/a reward/b", "a b"),
        ("epoch reward reward_a reward_b", "a b"),
        ("_step reward/a/mean reward/b/mean critic/score/mean", "a b"),
        ("step rewards.a rewards.b rewards.total", "a b"),
        ("step rewards/a rewards/a__MIN rewards/a__MAX rewards/b", "a b"),
        ("step acc_reward format_reward kl_penalty actor/reward_loss", "acc_reward format_reward"),
        (
            "step accuracy_mean format_mean kl_mean gizmo_mean response_length_mean",
            "accuracy format",
        ),
        ("step reward_a reward_a_min reward_a_max best_reward worst_reward reward_b", "a b"),
        ("step reward_a reward_b eval_reward_c val-core/x/reward/mean@1", "a b"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "json"])
def test_rows_with_a_step_each_are_the_means_of_steps(saved, columns, rewards, ending):
    rows = of_steps(*columns.split())
    texts = {
        "json": json.dumps(rows),
        "jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
        "csv": "\n".join(",".join(map(str, row)) for row in [rows[0], *(r.values() for r in rows)]),
    }
    file = saved(f"log.{ending}", texts[ending])
    assert means_of(file) == dict.fromkeys(rewards.split(), 0.4)
    assert list(read_rollout_files(file)) == []


def test_means_in_objects_are_those_of_their_rewards(saved):
    rows = [
        {"step": step, "rewards": {"a": step / 100, "b": {"mean": step / 100, "std": 0.1}}}
        for step in range(1, 41)
    ]
    assert means_of(saved("x.jsonl", rows)) == {"a": 0.4, "b": 0.4}


SAID = {"reply": "The answer is 4.", "asked": "How many?"}


@pytest.mark.parametrize("of_group", [{"prompt": "p"}, {"group_id": 3}, {"advantage": 0.5}, SAID])
def test_one_rollout_a_step_is_a_rollout_if_a_field_says_so(saved, of_group):
    rows = [row | of_group for row in of_steps("step", "reward")]
    file = saved("x.jsonl", rows)
    assert len(list(read_rollout_files(file))) == 40
    assert read_logs([file]) == []


def test_rollouts_that_share_their_steps_are_no_metrics(saved):
    rows = [{"step": i // 4, "reward": i % 3, "reward_a": i % 2} for i in range(40)]
    assert len(list(read_rollout_files(saved("x.jsonl", rows)))) == 10


def verl(step, number=str):
    """A line that verl's console logger prints."""
    keys = {"actor/entropy": 0.3, "actor/kl_loss": "nan", "training/global_step": step}
    keys |= {"critic/score/mean": number(0.5), "critic/advantages/min": -1.25, "actor/lr": "1e-06"}
    keys |= {f"reward/{name}/mean": number(TRUTH[name][step - 1]) for name in TRUTH}
    return " - ".join(
        [f"step:{step}", *(f"{k}:{v}" for k, v in {**keys, "timing_s/step": 9}.items())]
    )


def wrapped(text, width):
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))


LINES = [verl(int(step)) for step in STEPS]
OF_NUMPY = [verl(int(step), lambda number: f"np.float64({number})") for step in STEPS]
PROMPT = "(TaskRunner pid=123, ip=10.0.0.1)"
PRINTED = {
    "x.log": "\n".join(LINES),
    "x.txt": "\n".join(f"{PROMPT} {line}\n(WorkerDict pid=7) INFO - loaded" for line in LINES),
    "x.out": "".join(f"\x1b[36m{PROMPT} \x1b[0m{line}\n 5%|# | 1/20\n" for line in OF_NUMPY),
    "x.md": "# Log\n```text\n" + "\n".join(f"{PROMPT} {line}" for line in OF_NUMPY),
    "x": "".join(f"Training:  5%|# | 1/20 [00:01<00:19]\r{line}\r\n" for line in LINES),
    "w80.log": "\n".join(wrapped(f"{PROMPT} {line}", 80) for line in LINES),
    "w61.log": "\n".join(wrapped(line, 61) for line in LINES),
    "w.log": "\n".join(line.replace(" - ", "\n - ") for line in LINES),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_lines_of_verls_console_are_metrics(saved, name):
    (run,) = runs_at(saved(name, PRINTED[name]))
    is_true(run)


@pytest.mark.parametrize("after", ["5%|# | 2/3 - x:1", "12:00:01 - root:x", "INFO - root:x", "7"])
def test_a_number_before_a_line_end_is_not_joined_with_the_next_line(saved, after):
    lines = (f"step:{n} - actor/lr:1e-06 - reward/a/mean:0.{n}\n{after}\n" for n in range(1, 10))
    (run,) = runs_at(saved("x.log", "".join(lines)))
    assert run.rewards["a"]["mean"].tolist() == [n / 10 for n in range(1, 10)]
