"""A grid of runs: finished runs are kept, interrupted ones resumed, failed ones counted."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from tests.checkout import python_path
from tests.experiments.conftest import write_run
from tests.refusals import config_error

from gdpo.lab.experiments.grid import (
    _free,
    _slots,
    decidable,
    described,
    make_grid,
    read_labels,
    run_grid,
)
from gdpo.lab.experiments.process import Training, noted
from gdpo.lab.experiments.reading import estimator_of, read_experiment
from gdpo.lab.recipes.recipe import GateConfig
from gdpo.lab.runs.directory import read_run


def with_steps(recipe, steps):
    return recipe.model_copy(update={"trainer": {**recipe.trainer, "max_steps": steps}})


def write_gdpo(folder, steps, **options):
    """Write a run of gdpo with seed 1 that is always without format."""
    write_run(folder, "gdpo", 1, {"format": [0.0] * steps}, **options)


@pytest.fixture
def recipe(recipe, tmp_path, monkeypatch):
    """Two steps with the rewards `vowels` and `format`, which processes find, too."""
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path / "own"))
    of_two = {"rewards": (recipe.rewards[0], recipe.rewards[2])}
    return with_steps(recipe.model_copy(update=of_two), 2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "compare"


@pytest.fixture
def grid_of(recipe, folder):
    """Make the grid of a comparison of the recipe in the folder, or of others."""

    def made(labels=("gdpo",), seeds=(1,), *, recipe=recipe, folder=folder, reach=0.8, **options):
        return make_grid(recipe, labels, seeds, folder, reach=reach, **options)

    return made


@pytest.mark.slow
def test_runs_are_trained_once_and_seeds_may_be_added(folder, grid_of):
    grid = grid_of(["grpo", "gdpo"])
    seen = []
    run_grid(grid, jobs=2, update=lambda: seen.append(len(grid.running())))
    assert max(seen) == 2
    assert seen[-1] == 0
    assert [cell.finished for cell in grid.cells] == [True, True]
    assert not any(cell.run.report.exists() for cell in grid.cells)  # they have one together
    first = {run.path: run.path.stat().st_mtime for run in read_experiment(folder).runs}

    more = grid_of(seeds=[1, 2])
    assert [(cell.label, cell.seed) for cell in more.open()] == [("gdpo", 2)]
    run_grid(more, jobs=1)
    experiment = read_experiment(folder)
    assert (experiment.labels, experiment.seeds) == (("grpo", "gdpo"), (1, 2))
    assert [run.steps for run in experiment.runs] == [2, 0, 2, 2]
    again = grid_of(["gdpo", "grpo"])
    assert again.plan.labels == ("gdpo", "grpo")
    assert all(path.stat().st_mtime == at for path, at in first.items())


@pytest.mark.slow
def test_a_run_that_fails_is_a_result_with_its_reason(recipe, own_rewards, grid_of):
    wrong = recipe.rewards[0].model_copy(update={"name": f"{own_rewards}:too_high"})
    broken = recipe.model_copy(update={"rewards": (wrong,), "scorer": {"on_error": "raise"}})
    run_grid(grid_of(recipe=broken), jobs=1)
    grid = grid_of(recipe=broken)
    assert grid.open() == []
    assert grid.cells[0].failed
    assert "too_high" in json.loads(grid.cells[0].failure.read_text())["why"]
    again = grid_of(recipe=broken, retry_failed=True)
    assert again.open() == again.cells


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_checkpoint(recipe, folder, grid_of):
    # More steps than a fast machine makes between two looks at the grid.
    longer = with_steps(recipe, 40)
    grid = grid_of(recipe=longer)
    [cell] = grid.cells

    def stop_it():
        if cell.training and cell.begun and read_run(cell.run).last:
            os.kill(cell.training.process.pid, signal.SIGTERM)

    run_grid(grid, jobs=1, update=stop_it)
    assert not cell.failed
    before = read_run(cell.run).last.step
    assert 0 < before < 40
    assert read_experiment(folder).runs[0].state == "interrupted"
    run_grid(grid_of(recipe=longer), jobs=1)
    assert cell.finished
    assert read_run(cell.run).environment["resumed"][0]["at_step"] == before


def test_an_interruption_of_the_whole_leaves_no_process_behind(grid_of):
    grid = grid_of(seeds=[1, 2])
    processes = set()

    def interrupt():
        processes.update(cell.training.process for cell in grid.running())
        time.sleep(0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, jobs=2, update=interrupt)
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize(
    ("labels", "seeds", "reach", "message"),
    [
        ([], [1], 0.8, "--estimators"),
        (["gdpo"], [], 0.8, "--seeds"),
        (["gdpo", "gdpo"], [1], 0.8, "--estimators .*gdpo twice"),
        (["gdpo"], [1, 1], 0.8, "--seeds .*1 twice"),
        (["gdpo"], [1], 0.0, "above 0 and at most 1"),
        (["gpdo"], [1], 0.8, "did you mean 'gdpo'"),
        (["gdpo"], [-1], 0.8, "--seeds -1.*4294967295"),
        (["gdpo"], [2**32], 0.8, "--seeds .*4294967296"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    labels, seeds, reach, message, folder, grid_of
):
    with config_error(message):
        grid_of(labels, seeds, reach=reach)
    assert not (folder).exists()


def varied(recipe, **weights):
    """The recipe by name, each with another weight of the format."""
    return {
        f"format.weight={weight:g}": recipe.model_copy(
            update={
                "rewards": (
                    recipe.rewards[0],
                    recipe.rewards[1].model_copy(update={"weight": weight, **weights}),
                )
            }
        )
        for weight in (1.0, 0.5)
    }


def test_every_estimator_has_a_label_for_every_variant(recipe, folder, grid_of):
    variants = varied(recipe)
    grid = grid_of(["grpo", "gdpo"], [1, 2], variants=variants)
    assert grid.plan.labels == (
        "grpo format.weight=1",
        "grpo format.weight=0.5",
        "gdpo format.weight=1",
        "gdpo format.weight=0.5",
    )
    assert grid.plan.varied == ("rewards.1.weight",)
    assert len(grid.cells) == 8
    last = grid.cells[-1]
    assert last.name == "gdpo format.weight=0.5, seed 2"
    assert (last.recipe.advantage, last.recipe.rewards[1].weight) == ("gdpo", 0.5)
    assert last.run.path == folder / "gdpo_format.weight_0.5-seed-2"


def test_labels_that_differ_only_in_spelling_or_for_another_engine_are_refused(recipe, grid_of):
    said = recipe.batch.model_copy(update={"rollouts_per_step": recipe.batch.rollouts})
    for other in ({"batch": said}, {"verl": {"a.b": 1}}, {"save_minutes": 3.0}):
        variants = {"a": recipe, "b": recipe.model_copy(update=other)}
        with config_error(r"'gdpo a' and 'gdpo b'.* identical"):
            grid_of(variants=variants)


def test_labels_that_train_the_same_or_have_other_rewards_are_refused(recipe, grid_of):
    options = {
        f"advantage_options={{max_advantage: {bound}}}": recipe.model_copy(
            update={"advantage_options": {"max_advantage": float(bound)}}
        )
        for bound in (3, 4)
    }
    grid_of(variants=options)
    with config_error(r"'grpo adv.* and 'grpo adv.* identical"):
        grid_of(["grpo"], variants=options)
    fewer = {"": recipe, "fewer": recipe.model_copy(update={"rewards": recipe.rewards[:1]})}
    with config_error(r"'gdpo' .*vowels, format, .*'gdpo fewer' has vowels"):
        grid_of(variants=fewer)


def test_what_a_comparison_can_show_is_printed_before_it_is_trained(recipe, grid_of, folder):
    variants = varied(recipe, gate=GateConfig(on="vowels", at_least=0.5))
    everything = {"": recipe, **variants}
    grid = grid_of(seeds=range(5), variants=everything)
    seen = "\n".join(described(grid, jobs=2))
    assert seen.startswith(f"15 runs in {folder}, 15 left to train, 2 at a time: 3 variants")
    assert "gdpo format.weight=0.5: 0 of 5 done; folders gdpo_format.weight_0.5-seed-0, …" in seen
    assert "2 variants with gdpo in vowels and format: 2 comparisons." in seen
    assert "format is not compared for 2 variants" in seen
    assert "With 5 seeds no p-value can be below 0.016" in seen
    few = grid_of(["gdpo", "grpo"], range(3))
    assert described(few, jobs=2)[-1].endswith("--seeds 5 or more.")
    assert described(few, jobs=2)[-2:] == decidable(few)
    one = grid_of(seeds=range(3))
    assert described(one, jobs=2)[-1] == decidable(one)[0]
    assert "gdpo" in decidable(one)[0]


def test_a_name_of_ones_own_stands_for_the_estimator_everywhere(recipe, folder, grid_of):
    labels = read_labels("grpo, mine=gdpo.advantages:mo_grpo,ours=gdpo")
    assert labels == ["grpo", "mine", "ours"]
    grid = grid_of(labels, variants=varied(recipe))
    cell = next(each for each in grid.cells if each.label == "mine format.weight=0.5")
    assert cell.recipe.advantage == "gdpo.advantages:mo_grpo"
    assert cell.run.path == folder / "mine_format.weight_0.5-seed-1"
    ours = next(each for each in grid.cells if each.label.startswith("ours"))
    assert (ours.recipe.advantage, ours.recipe.name) == ("gdpo", "ours_format.weight_1-seed-1")


def existing(grid_of, labels):
    """Write a comparison with one seed that has been trained."""
    grid = grid_of(read_labels(labels))
    for label in grid.plan.labels:
        write_run(grid.folder, label, 1, {"vowels": [0.0] * 2, "format": [0.0] * 2}, steps=2)
    grid.plan.write(grid.folder)


def test_a_name_keeps_its_estimator_when_seeds_and_values_are_added(recipe, folder, grid_of):
    existing(grid_of, "grpo,mine=mo_grpo")
    mine = read_experiment(folder).runs[1].label
    assert (mine, estimator_of(mine)) == ("mine", "mo_grpo")
    more = grid_of(read_labels("grpo,gdpo"), [1, 2]).plan
    assert [estimator_of(label) for label in more.labels] == ["grpo", "mo_grpo", "gdpo"]
    assert more.seeds == (1, 2)
    more = grid_of(["grpo"], variants=varied(recipe)).plan
    assert more.labels == ("grpo", "mine", "grpo format.weight=1", "grpo format.weight=0.5")


OTHERS = "grpo,gdpo.advantages:mo_grpo,mine=gdpo"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (OTHERS, "mine=rloo", "'mine' .*gdpo.*rloo"),
        (OTHERS, "gdpo.advantages_mo_grpo=rloo", "'gdpo.advantages:mo_grpo' and .*folder"),
        (OTHERS, "MINE=rloo", "'mine' and 'MINE' .*folder"),
        (OTHERS, "GRPO=rloo", "'grpo' and 'GRPO' .*folder"),
        ("", "mine=gdpo,Mine=rloo", "'mine' and 'Mine' .*folder"),
        ("grpo,gdpo", "grpo,ours=gdpo", "'gdpo' and 'ours'.*--output"),
        ("grpo,gdpo", "base=grpo,gdpo", "'grpo' and 'base'.*--output"),
        ("grpo,ours=gdpo", "grpo,gdpo", "'ours' and 'gdpo'.*--output"),
    ],
)
def test_a_name_that_is_taken_or_trains_what_another_does_is_refused(old, new, message, grid_of):
    if old:
        existing(grid_of, old)
    with config_error(message):
        grid_of(read_labels(new))


def test_another_recipe_or_another_folder_is_not_mixed_in(recipe, folder, tmp_path, grid_of):
    grid = grid_of()
    assert not folder.exists(), "what fails before it begins takes no folder"
    write_gdpo(folder, 1)
    grid.plan.write(folder)
    other = with_steps(recipe, 3)
    with config_error(r"trainer.max_steps: 2 → 3"):
        grid_of(recipe=other)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with config_error(r"is not a comparison.*--output"):
        grid_of(folder=tmp_path / "mine")


def test_each_run_gets_a_device_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert _slots(3) == ["0", "3", "0"]
    assert _slots(1) == [""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _slots(2) == ["", ""]


@pytest.mark.parametrize(
    ("devices", "left"),
    [
        ([], ["0", "1"]),
        (["0"], ["1"]),
        (["1"], ["0"]),
        ([None], ["0"]),  # where it trains is not known: it counts all the same
        ([None, "0"], []),
        (["7"], ["0"]),
        (["0", "1", "1"], []),
    ],
)
def test_a_run_of_an_earlier_call_keeps_its_device_and_counts(devices, left, tmp_path, grid_of):
    cells = grid_of(seeds=[1, 2, 3, 4]).cells
    for cell, device in zip(cells, devices, strict=False):
        cell.training, cell.device = Training(tmp_path, None), device
    assert _free(["0", "1"], cells) == left


def test_a_comparison_that_was_killed_before_its_plan_takes_its_folder_again(folder, grid_of):
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".comparison.json.123.partial").touch()
    (cell,) = grid_of().cells
    assert (cell.label, cell.seed) == ("gdpo", 1)


@pytest.fixture
def orphan():
    """Starts a process of an earlier comparison that trains a cell, as far as others can see."""
    with ExitStack() as stack:

        def start(cell, *, keeps_its_number=True):
            cell.note.parent.mkdir(parents=True, exist_ok=True)
            with noted(cell.note, "") as (descriptor, write):
                process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
                stack.enter_context(process)
                if keeps_its_number:
                    write(process.pid)
            return process

        yield start


@pytest.mark.slow
def test_the_cell_of_an_orphan_that_ends_early_goes_on(recipe, orphan, grid_of):
    short = with_steps(recipe, 1)
    grid = grid_of(recipe=short)
    process = orphan(grid.cells[0])
    said = []
    run_grid(grid, jobs=1, update=lambda: process.poll() or process.terminate(), say=said.append)
    assert len(said) == 1
    assert "gdpo, seed 1" in said[0]
    assert "earlier comparison" in said[0]
    assert grid.cells[0].finished


def test_the_cell_of_an_orphan_that_finishes_is_not_trained_again(orphan, grid_of):
    grid = grid_of()
    process = orphan(grid.cells[0])
    assert grid.open(), "it is not done yet"

    def update():
        if process.poll() is None:
            write_gdpo(grid.folder, 2)
            process.communicate()

    run_grid(grid, jobs=1, update=update)
    assert grid.cells[0].finished
    assert not grid.cells[0].failure.with_name("gdpo-seed-1.log").exists()


def test_an_orphan_that_has_finished_its_run_is_waited_for_until_it_ends(orphan, grid_of):
    grid = grid_of()
    write_gdpo(grid.folder, 2)
    process = orphan(grid.cells[0])
    assert not grid.open()
    run_grid(grid, jobs=1, update=process.terminate)
    assert process.wait() == -signal.SIGTERM
    assert not grid.cells[0].note.exists()


def test_what_a_killed_comparison_left_half_written_goes(folder, grid_of):
    grid = grid_of()
    write_gdpo(folder, 2)
    (folder / "logs").mkdir()
    for place in (folder, folder / "logs"):
        (place / ".half.json.123.partial").touch()
    (folder / "logs" / "gdpo-seed-2.process").touch()  # of a run that ended with nobody there
    run_grid(grid, jobs=1)
    assert not [*folder.rglob("*.partial"), *folder.rglob("*.process")]


def test_ctrl_c_stops_the_orphans_and_leaves_what_others_train(tmp_path, orphan, holder, grid_of):
    grid = grid_of(["grpo", "gdpo", "mo_grpo"], [1, 2])
    ours, unknown = orphan(grid.cells[0]), orphan(grid.cells[2], keeps_its_number=False)
    theirs = holder(grid.cells[4].run.path)
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid, jobs=3, update=lambda: os.kill(os.getpid(), signal.SIGINT))
    assert not list(tmp_path.rglob("*.log")), "three of three jobs were taken"
    assert ours.wait() == -signal.SIGTERM
    assert (unknown.poll(), theirs.poll()) == (None, None)
    assert grid.conclusion() == "stopped with 0 of 6 runs done; rerun the same command to resume"


def test_a_second_comparison_in_the_same_folder_is_kept_out(folder, holder, grid_of):
    grid = grid_of()
    holder(folder)
    with config_error("another process trains in"):
        run_grid(grid, jobs=1)


@pytest.mark.parametrize(
    ("code", "interrupted"),
    [("-9", False), ("-15", True), ("-1", True), ("130", True), ("1", False)],
)
def test_a_run_killed_for_memory_has_failed_and_a_run_stopped_on_purpose_can_be_resumed(
    code, interrupted, tmp_path
):
    ends = f"exit({code})"
    if code[0] == "-":
        number = code[1:]
        reset = "" if number == "9" else f"signal.signal({number}, signal.SIG_DFL); "
        ends = f"import os, signal; {reset}os.kill(os.getpid(), {number})"
    process = subprocess.Popen([sys.executable, "-c", ends], stderr=subprocess.DEVNULL)
    process.wait()
    assert Training(tmp_path / "log", process).interrupted == interrupted


def test_a_run_that_was_killed_says_by_what(folder, saved, grid_of):
    grid = grid_of()
    [cell] = grid.cells

    def kill_it():
        if cell.training:
            os.kill(cell.training.process.pid, signal.SIGKILL)

    run_grid(grid, jobs=1, update=kill_it)
    assert cell.failed
    assert cell.why() == "killed by SIGKILL (out of memory?)"
    write_gdpo(folder, 4, finished=False)
    process = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    process.wait()
    why = Training(saved("log", "step 4/4 | all is well"), process).why()
    assert why.splitlines()[-2:] == ["step 4/4 | all is well", "killed by SIGABRT"]
    assert read_experiment(folder).runs[0].why.splitlines()[-1] == cell.why()


def test_a_full_disk_is_reported_as_such_and_leaves_no_process_behind(grid_of):
    grid = grid_of()
    [cell] = grid.cells
    full_disk = cell.failure.with_name(f".{cell.failure.name}.{os.getpid()}.partial")
    processes = []

    def kill_it():
        if not processes:
            full_disk.symlink_to("/dev/full")
        processes.append(cell.training.process)
        os.kill(cell.training.process.pid, signal.SIGKILL)

    with pytest.raises(OSError, match="No space left") as full:
        run_grid(grid, jobs=1, update=kill_it)
    assert full.value.errno == errno.ENOSPC
    assert full.value.filename == str(cell.failure)
    assert all(process.poll() is not None for process in processes)
