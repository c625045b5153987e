"""Writes what verl needs into a run directory, and runs it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo._files import write_whole
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.launch._finish import finish
from gdpo.launch._trainer import check_fields
from gdpo.launch._trl_defaults import field
from gdpo.launch._verl import VerlFiles, own_fields, verl_config, with_fields
from gdpo.launch.batches import Batches, Machines, plan
from gdpo.recipes.data import digest_of, read_data
from gdpo.recipes.models import SMOLLM2, convert_smollm2
from gdpo.recipes.recipe import DataConfig, Recipe
from gdpo.recipes.resolve import Resolved, resolve
from gdpo.recipes.yaml import dump_yaml
from gdpo.runs.directory import RunDirectory, create_run, refuse_existing
from gdpo.runs.environment import describe_environment
from gdpo.runs.lock import lock, lock_descriptor, unlock
from gdpo.runs.resume import find_run, refuse_other_circumstances
from gdpo.tasks import Problem

_SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"index": pa.int64()}),
    }
)


def write_rows(file: Path, problems: Sequence[Problem], task: str) -> None:
    """Write prompts and references, whole or not at all.

    The reference is JSON, as `compute_score` takes it: a parquet column would give every row the
    fields of all others.

    Args:
        file: Where to.
        problems: Of the recipe's data.
        task: Its name, which verl keeps as `data_source`.
    """
    rows = [
        {
            "data_source": task,
            "prompt": [{"role": m["role"], "content": m["content"]} for m in problem.prompt],
            "reward_model": {"style": "rule", "ground_truth": json.dumps(problem.reference)},
            "extra_info": {"index": index},
        }
        for index, problem in enumerate(problems)
    ]
    partial = file.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), partial)
    partial.replace(file)


_HEADER = "# What `gdpo launch verl` made of recipe.yaml beside this folder. Change the recipe.\n"


@dataclass(frozen=True, slots=True)
class Launch:
    """A run of verl that is worked out, and not begun."""

    resolved: Resolved
    machines: Machines
    batches: Batches
    config: dict[str, Any]
    """Of verl."""
    overrides: tuple[str, ...]
    """Of the user's own, for Hydra."""
    notes: tuple[str, ...]
    """Where verl differs."""

    @property
    def recipe(self) -> Recipe:
        """Of `resolved`."""
        return self.resolved.recipe

    @property
    def files(self) -> VerlFiles:
        """Where everything lies."""
        return VerlFiles(RunDirectory(self.recipe.run_dir))

    @property
    def config_text(self) -> str:
        """The configuration as the file holds it."""
        return _HEADER + dump_yaml(_escaped(self.config))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that verl needs beside those that are there."""
        variables = {"VERL_FILE_LOGGER_PATH": str(self.files.metrics)}
        if self.machines.nodes > 1:
            variables["RAY_ADDRESS"] = os.environ.get("RAY_ADDRESS", "auto")
        return variables

    @property
    def arguments(self) -> list[str]:
        """The command."""
        config = self.files.config
        return [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            f"--config-path={config.parent}",
            f"--config-name={config.stem}",
            *self.overrides,
        ]

    @property
    def command(self) -> str:
        """The same for a shell, a line for each argument that a person looks at."""
        variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in self.environment.items())
        module, *rest = self.arguments[2:]
        begin = f"{variables} {shlex.quote(self.arguments[0])} -m {module}"
        return " \\\n  ".join([begin, *(shlex.quote(each) for each in rest)])


def plan_verl(
    recipe: Recipe | Resolved,
    machines: Machines,
    *,
    overrides: Sequence[str] = (),
) -> Launch:
    """Work out a run of verl. Nothing is read, written or started; verl need not be there.

    Args:
        recipe: What to train.
        machines: What it runs on. They share the recipe's batch.
        overrides: `key=value` of verl's own configuration, which go before what the recipe says.

    Raises:
        ConfigError: Something in the recipe has no counterpart in verl.
    """
    resolved = resolve(recipe)
    recipe = resolved.recipe
    if recipe.lora is not None and recipe.lora.dropout:
        raise ConfigError(
            f"{recipe.place('lora', 'dropout')}: verl's LoRA has no dropout: set lora.dropout to 0"
        )
    if wrong := [o for o in overrides if "=" not in o.strip("~")[1:] or not o.isprintable()]:
        raise ConfigError(
            f"{wrong[0]!r} after `--` is no override of verl's configuration: write key=value, as "
            "in trainer.logger=[console,wandb]"
        )
    notes = check_fields(recipe)
    batches = plan(recipe, machines)
    config = verl_config(resolved, batches, machines)
    own = own_fields(recipe)
    given = [*(f"{path}={value}" for path, value in own.items()), *overrides]
    notes += [f"{each} goes before what the recipe says" for each in _taken(given, config)]
    config = with_fields(config, own, place=recipe.place("verl"))
    return Launch(resolved, machines, batches, config, tuple(overrides), tuple(notes))


def launch_verl(
    launch: Launch, *, resume: bool = False, told: Callable[[str], None] = lambda _: None
) -> int:
    """Write the configuration and the data, start verl, and wait for its end.

    Args:
        launch: What to run.
        resume: Go on with the run of this recipe, from verl's last checkpoint.
        told: Called with what is being done.

    Returns:
        verl's exit code.

    Raises:
        ConfigError: The run directory is taken, there is nothing to resume, or the installed verl
            is one that gdpo does not know.
        DataError: The data is wrong.
        MissingExtraError: verl is not installed.
    """
    _check_verl()
    recipe = launch.recipe
    if resume:
        find_run(recipe)
    else:
        refuse_existing(RunDirectory(recipe.run_dir), recipe)
    rows = _rows(launch, recipe.data, told)
    eval_rows = None if recipe.eval_data is None else _rows(launch, recipe.eval_data, told)
    if len(rows) < launch.batches.prompts:
        raise ConfigError(
            f"{recipe.place('data')}: the data has {len(rows)} rows, and one generation takes "
            f"{launch.batches.prompts} prompts"
        )
    try:
        run = _opened(launch, rows, resume=resume)
        _write(launch, rows, eval_rows)
        told(f"{run.path}: verl begins")
        code = _wait_for(
            subprocess.Popen(
                launch.arguments,
                env=os.environ | launch.environment,
                pass_fds=[lock_descriptor(run.path)],  # the run is locked for as long as verl lives
            )
        )
        run.update_environment(verl_exit_code=code)
        if code == 0:
            told(f"{run.path}: {finish(launch.resolved, launch.files)}")
        return code
    finally:
        unlock(recipe.run_dir)


def _check_verl() -> None:
    from gdpo.integrations.verl.settings import KNOWN

    try:
        installed = version("verl")
    except PackageNotFoundError as error:
        raise MissingExtraError("verl", None, "to launch a run of it (pip install verl)") from error
    if installed not in KNOWN:
        raise ConfigError(
            f"verl {installed} is installed, and gdpo knows {', '.join(KNOWN)}: install one of "
            "these, or a newer gdpo"
        )


def _rows(launch: Launch, data: DataConfig, told: Callable[[str], None]) -> Sequence[Problem]:
    rows = read_data(launch.resolved.task, data)
    if rows.left_out:
        told(rows.left_out)
    return rows.problems


def _opened(launch: Launch, rows: Sequence[Problem], *, resume: bool) -> RunDirectory:
    """The run's directory, locked."""
    recipe, processes = launch.recipe, launch.machines.processes
    facts = {
        **describe_environment(processes, field(recipe, "seed")),
        "engine": "verl",
        "rows": len(rows),
        "data_digest": digest_of(rows),
        "recipe_digest": recipe.digest,
    }
    declared = {"rewards": launch.resolved.described()}
    if not resume:
        run = create_run(recipe, facts | declared)
        lock(run.path)
        return run
    run = RunDirectory(recipe.run_dir)
    lock(run.path)
    refuse_other_circumstances(run, facts)
    resumed = [*run.read_environment().get("resumed", []), facts]
    run.update_environment(**declared, resumed=resumed)
    write_whole(run.recipe, recipe.to_yaml())
    return run


def _write(launch: Launch, rows: Sequence[Problem], eval_rows: Sequence[Problem] | None) -> None:
    files, task = launch.files, launch.resolved.task.name
    files.folder.mkdir(exist_ok=True)
    _keep_earlier(files)
    write_rows(files.train, rows, task)
    if eval_rows is not None:
        write_rows(files.evaluation, eval_rows, task)
    write_whole(files.config, launch.config_text)
    write_whole(files.command, f"#!/bin/sh\n{launch.command}")
    if launch.recipe.model == SMOLLM2:
        convert_smollm2()


def _keep_earlier(files: VerlFiles) -> None:
    """What the run wrote before it was resumed gets a number: verl begins its log anew."""
    for file in (files.config, files.command, files.metrics):
        if file.exists():
            number = len(list(files.folder.glob(f"{file.stem}-*{file.suffix}"))) + 1
            file.rename(file.with_name(f"{file.stem}-{number}{file.suffix}"))


def _taken(overrides: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Return the overrides of what the recipe decides."""
    found: list[str] = []
    for override in overrides:
        value: Any = config
        for key in override.partition("=")[0].lstrip("+~").split("."):
            value = (
                cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
            )
        found += [override] if value is not None else []
    return found


def _escaped(value: Any) -> Any:
    """As OmegaConf reads it back: it would look up what stands in `${...}`."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_escaped(each) for each in cast("list[Any]", value)]
    return value


def _wait_for(process: "subprocess.Popen[bytes]") -> int:
    """Its exit code. Ctrl-C reaches verl, too, which ends by itself; a second one kills it.

    SIGTERM, as a scheduler sends it, is passed on.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
