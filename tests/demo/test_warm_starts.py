"""The table of `python -m benchmarks.demo_warm_starts`: a warm start is one observation."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from benchmarks import demo_warm_starts
from benchmarks.demo._report import Curve
from benchmarks.demo_warm_starts import curves_of, each_warm_start, over_warm_starts

from gdpo._student import paired_interval


def demo(grpo, gdpo):
    """The two curves of a warm start: 0 until the last tenth of 50 steps, then a constant."""
    ends = {"grpo": grpo, "gdpo": gdpo}
    return [Curve(name, "format", 0.0, 1.0, (0.0,) * 45 + (end,) * 5) for name, end in ends.items()]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_interval_is_over_the_warm_starts_and_the_difference_is_paired():
    ends = [(0.1, 0.9), (0.3, 0.5), (0.8, 1.0)]
    grpo, gdpo, difference = map(cells, over_warm_starts([demo(*each) for each in ends])[2:])
    assert grpo[:4] == ["format", "GRPO", "1 of 3", "50 to 50"]
    assert gdpo[:4] == ["format", "GDPO", "2 of 3", "49 to 50"]
    a, b = np.array(ends).T
    mean, low, high, _ = paired_interval(b, a)
    assert difference[-1] == f"{mean:.2f} ({low:.2f} to {high:.2f})".replace("-", "−")


def test_each_warm_start_has_a_row():
    rows = [cells(line) for line in each_warm_start([demo(0.1, 0.9), demo(0.3, 0.5)])[2:]]
    assert rows == [["0", "0.10, never", "0.90, 50"], ["1", "0.30, never", "0.50, never"]]


def test_a_finished_seed_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_warm_starts, "run_demo", lambda *_, **__: pytest.fail("ran again"))
    kept = demo(0.1, 0.9)
    (tmp_path / "rare-3.json").write_text(json.dumps([asdict(curve) for curve in kept]))
    assert [curve.end for curve in curves_of(tmp_path, "rare", 3)] == pytest.approx([0.1, 0.9])
