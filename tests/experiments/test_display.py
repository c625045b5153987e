"""The lines that a comparison prints where the output is not a terminal."""

import io
from itertools import chain, repeat

from rich.console import Console
from tests.experiments.conftest import write_run

from gdpo.lab.experiments import display
from gdpo.lab.experiments.display import grid_display
from gdpo.lab.experiments.grid import Cell, Grid
from gdpo.lab.experiments.process import Training
from gdpo.lab.experiments.reading import ComparisonPlan, failure_file
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.resolve import resolve


def grid_of(folder, seeds):
    """Return a grid whose runs have not started."""
    (folder / "rows.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n')
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"task: gsm8k\nmodel: m\ndata: {{source: {folder / 'rows.jsonl'}}}\nruns_dir: {folder}\n"
    )
    cells = [
        Cell(
            "gdpo",
            seed,
            resolve(read_recipe(recipe, [f"name=gdpo-seed-{seed}"])),
            failure_file(folder, "gdpo", seed),
        )
        for seed in seeds
    ]
    return Grid(folder, ComparisonPlan("", ("gdpo",), tuple(seeds)), cells, ("format",))


def test_runs_that_end_together_are_counted_one_by_one(tmp_path):
    grid = grid_of(tmp_path, [1, 2, 3])
    out = io.StringIO()
    with grid_display(grid, Console(file=out), jobs=2, total_steps=4, price=0) as update:
        for seed in (1, 2):
            write_run(tmp_path, "gdpo", seed, {"format": [0.5] * 4})
        update()
    first, second = out.getvalue().splitlines()
    assert "cost" not in first
    assert first.startswith("gdpo, seed 1: finished at step 4; format 0.50. 1 of 3 runs")
    assert "2 of 3 runs" in second
    assert display._read.cache_info().hits  # files of the same size are not read again


def test_a_price_gives_the_cost_of_the_rest(tmp_path, monkeypatch):
    grid, out, clock = grid_of(tmp_path, [1, 2]), io.StringIO(), chain([0.0], repeat(1800.0))
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    grid.cells[0].began = 1.0
    with grid_display(grid, Console(file=out), jobs=2, total_steps=4, price=3) as update:
        write_run(tmp_path, "gdpo", 1, {"format": [0.5] * 4})
        update()
    assert "30:00 min left (1:00 h of run time), cost 3.00" in out.getvalue()


def test_a_terminal_shows_the_step_of_each_run_in_training(tmp_path):
    grid, out = grid_of(tmp_path, [1, 2]), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    write_run(tmp_path, "gdpo", 1, {"format": [0.5] * 3}, finished=False)
    cell = grid.cells[0]
    cell.training = Training(tmp_path / "log", None)
    with grid_display(grid, console, jobs=2, total_steps=4, price=0) as update:
        update()
    assert "0 of 2 runs; gdpo, seed 1 at step 3" in out.getvalue()
