"""The decisions over warm starts of the study."""

import pytest
from benchmarks.study import warm_starts as study
from benchmarks.study._map import map_cells

SEEDS = [str(seed) for seed in range(1, 11)]


def part(**ends):
    """Return runs that reach 80 % at step 10 + warm start, or `late` ones 40 steps later."""
    runs = {
        label: {
            reward: {
                seed: {"end": end(label, int(seed)), "at": 10 + int(seed) + 40 * late}
                for seed in SEEDS
            }
            for reward, end in ends.items()
            for late in [(label == "gdpo") == (reward == "correctness")]
        }
        for label in study.ESTIMATORS
    }
    return {"steps": 100, "runs": runs}


@pytest.mark.parametrize(("better", "expected"), [("gdpo", "supported"), ("grpo", "refuted")])
def test_the_map_is_decided_over_whole_warm_starts(better, expected, capsys):
    cells = {
        cell.name: part(format=lambda label, _: 0.9 if label == better else 0.1)
        for cell in map_cells()
    }
    study.map_decision(cells)
    assert f"Main hypothesis: {expected}" in capsys.readouterr().out
    cells.popitem()
    study.map_decision(cells)
    assert "Main hypothesis: not decided, 20 runs are missing" in capsys.readouterr().out


@pytest.mark.parametrize(("gap", "expected"), [(0.01, "supported"), (0.2, "refuted")])
def test_the_parts_of_the_study(gap, expected, capsys):
    def end(label, seed):
        return 0.5 + gap * (label == "gdpo") * (1 + seed / 100)

    study.maths_decision(part(correctness=end, format=end))
    study.requested_decision("requested tools", {s: gap + int(s) / 1000 for s in SEEDS})
    assert capsys.readouterr().out.count(f"Hypothesis: {expected}") == 2
    study.tools_decision(part(format=end, correctness=end))
    assert "Hypothesis: supported" in capsys.readouterr().out
