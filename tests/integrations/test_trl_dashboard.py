"""The chart of influence shares in TensorBoard and W&B, and that it never ends a training."""

import json
import logging
import re
import sys
from types import SimpleNamespace

import pytest
from tests.integrations.variants import make
from transformers import TrainerControl, TrainerState
from transformers.integrations.integration_utils import TensorBoardCallback, WandbCallback

from gdpo.integrations.trl._dashboard import Dashboard

CONTROL = TrainerControl()


def tensorboard(writer):
    """TensorBoard's callback with another writer; its package need not be installed."""
    callback = object.__new__(TensorBoardCallback)
    callback.tb_writer = writer
    return callback


class Writer:
    """Keeps the layouts that it is given."""

    def __init__(self):
        self.layouts = []

    def add_custom_scalars(self, layout):
        self.layouts.append(layout)


class BrokenWriter:
    def add_custom_scalars(self, layout):
        raise RuntimeError("no disk")


def begun(writer, *, main=True):
    dashboard = Dashboard([tensorboard(writer)])
    state = TrainerState(is_world_process_zero=main)
    dashboard.on_train_begin(None, state, CONTROL)
    dashboard.on_log(None, state, CONTROL, logs={"rewards/a/influence_share": 0.5})
    dashboard.on_train_end(None, state, CONTROL)


def test_tensorboard_gets_one_chart_with_the_shares_of_all_rewards():
    writer = Writer()
    begun(writer)
    ((kind, (pattern,)), _) = writer.layouts[0]["gdpo"].values()
    assert kind == "Multiline"
    assert re.fullmatch(pattern, "train/rewards/my/own/influence_share")
    assert not re.fullmatch(pattern, "train/rewards/a/mean")
    assert len(writer.layouts) == 1


def test_other_processes_draw_nothing():
    writer = Writer()
    begun(writer, main=False)
    assert writer.layouts == []


def test_a_writer_that_fails_costs_one_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="gdpo"):
        begun(BrokenWriter())
    assert [record.message for record in caplog.records] == [
        "the chart of influence shares is left out: no disk"
    ]


def test_without_a_reporter_nothing_happens():
    dashboard = Dashboard([])
    state = TrainerState(is_world_process_zero=True)
    dashboard.on_train_begin(None, state, CONTROL)
    dashboard.on_log(None, state, CONTROL, logs={"rewards/a/influence_share": 0.5})
    dashboard.on_train_end(None, state, CONTROL)


@pytest.mark.slow
def test_a_training_with_tensorboard_has_the_chart_in_its_event_file(
    tiny_policy, tmp_path, monkeypatch
):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    make("ours", tiny_policy, tmp_path / "run", report_to=["tensorboard"]).train()
    (events,) = (tmp_path / "events").glob("*.tfevents.*")
    raw = events.read_bytes()
    assert b"custom_scalars__config__" in raw
    assert b"influence share of each reward" in raw


@pytest.mark.slow
def test_a_training_with_wandb_has_the_chart_in_its_run(tiny_policy, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    make("ours", tiny_policy, tmp_path / "run", report_to=["wandb"]).train()
    wandb.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/files/media/table/gdpo/*.table.json")
    table = json.loads(file.read_text())
    assert table["columns"] == ["step", "lineKey", "lineVal"]
    assert {row[0] for row in table["data"]} == {1, 2, 3}
    assert {row[1] for row in table["data"]} == {"bytes_written", "digits", "sometimes_vowels"}


def with_wandb(monkeypatch, log):
    """A dashboard in a run of W&B whose charts are kept by `log`."""
    plot = SimpleNamespace(line_series=lambda steps, lines, names, *_: (steps, lines, names))
    wandb = SimpleNamespace(run=True, plot=plot, log=lambda row: log(row["gdpo/influence_shares"]))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return Dashboard([object.__new__(WandbCallback)])


def train(dashboard, steps):
    for step in range(1, steps + 1):
        logs = {"rewards/a/influence_share": 0.5, "loss": 1.0}
        logs |= {"rewards/b/influence_share": 0.25} if step > 2 else {}
        state = TrainerState(is_world_process_zero=True, global_step=step)
        dashboard.on_log(None, state, CONTROL, logs=logs)
    dashboard.on_train_end(None, state, CONTROL)


def test_a_chart_of_wandb_is_drawn_when_the_steps_have_doubled_and_at_the_end(monkeypatch):
    drawn = []
    train(with_wandb(monkeypatch, drawn.append), 1000)
    assert [steps[-1] for steps, _, _ in drawn] == [8, 16, 32, 64, 128, 256, 512, 1000]
    _, lines, names = drawn[0]
    assert names == ["a", "b"]
    assert lines[1] == [None, None, *[0.25] * 6]
    assert all(len(steps) <= 400 for steps, _, _ in drawn)


def test_wandb_that_fails_costs_one_warning(monkeypatch, caplog):
    def fail(chart):
        raise RuntimeError("no network")

    with caplog.at_level(logging.WARNING, logger="gdpo"):
        train(with_wandb(monkeypatch, fail), 40)
    assert [record.message for record in caplog.records] == [
        "the chart of influence shares is left out: no network"
    ]
