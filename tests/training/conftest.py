"""What tests of whole trainings share: runs that are trained once, comparisons, broken runs."""

import json
import shutil
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.directory import RunDirectory, read_environment, read_metrics
from gdpo.lab.training import check, train
from gdpo.lab.training.reward_checks import Level

NOT_REPEATABLE = (
    "step_time",
    "train_runtime",
    "eval_runtime",
    "eval_samples_per_second",
    "eval_steps_per_second",
)
"""Figures that no two runs share."""


def repeatable(run):
    return [
        {key: value for key, value in row.items() if key not in NOT_REPEATABLE}
        for row in read_metrics(run)
    ]


def weights(run):
    return load_file(run.model / "model.safetensors")


def rollouts(run):
    """The tables of all steps; only the name of the run, which is another one, is left out."""
    files = sorted(run.rollouts.rglob("*.parquet"))
    tables = {str(file.relative_to(run.rollouts)): pq.read_table(file) for file in files}
    return {name: table.drop_columns(["run"]) for name, table in tables.items()}


def contents(folder):
    """Return the files of a folder by path, without the lock of a run."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def wrong_in(recipe):
    """Return the texts of what the check of a recipe finds wrong."""
    return [finding.text for finding in check(recipe) if finding.level is Level.WRONG]


def assert_equal_runs(run, other):
    """All that can be repeated is the same, to the bit."""
    assert repeatable(run) == repeatable(other)
    assert rollouts(run) == rollouts(other)
    mine, theirs = weights(run), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def forget_checkpoints_after(run, step):
    """What is left of a run that died after this step's checkpoint."""
    for folder in run.checkpoints.iterdir():
        if int(folder.name.rpartition("-")[2]) > step:
            shutil.rmtree(folder)
    shutil.rmtree(run.model)
    facts = read_environment(run)
    del facts["finished"]
    run.environment.write_text(json.dumps(facts))


def assert_resumes_exactly(run, step):
    """Resume a run that died after this step: it ends as it did before. Return the result."""
    whole = repeatable(run)
    forget_checkpoints_after(run, step)
    result = train(load_recipe(run.path), resume=True)
    assert result.started_at == step
    assert repeatable(run) == whole
    return result


@pytest.fixture(scope="session")
def trained_before():
    """The results of trainings, by the changes of the recipe."""
    return {}


@pytest.fixture
def trained(load, trained_before, tmp_path_factory):
    """Trains the recipe with some changes once a session; returns the result with a copy of it."""

    def once(*changes):
        if changes not in trained_before:
            folder = tmp_path_factory.mktemp("trained")
            recipe = load(*changes, f"runs_dir={folder}")
            trained_before[changes] = train(recipe)
        result, recipe = trained_before[changes], load(*changes)
        shutil.copytree(result.run.path, recipe.run_dir)
        run = RunDirectory(recipe.run_dir)
        run.recipe.write_text(recipe.to_yaml())
        return replace(result, run=run)

    return once


@pytest.fixture
def finished(trained):
    """The result of training the recipe."""
    return trained()


@pytest.fixture
def begun(finished):
    """What is left of a run that died in its last step."""
    forget_checkpoints_after(finished.run, 3)
    return finished.run
