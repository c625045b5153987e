"""Builds verl's configuration from a recipe.

Hydra merges the result over verl's own configuration `ppo_trainer`.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import Any, cast

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations.rows import PREFIX
from gdpo.integrations.verl import compute_score
from gdpo.integrations.verl.scores import PATH, SCORE, TOKENS_MANAGER
from gdpo.integrations.verl.settings import COLUMN
from gdpo.lab.launch._trainer import actor, length, rollout
from gdpo.lab.launch._trl_defaults import field
from gdpo.lab.launch.batches import Batches, Machines
from gdpo.lab.recipes.batches import filters_groups
from gdpo.lab.recipes.models import SMOLLM2, converted_folder
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.runs.directory import RunDirectory
from gdpo.rewards.weights_column import WEIGHTS_COLUMN


@dataclass(frozen=True, slots=True)
class VerlFiles:
    """Provides the paths in the run directory that verl reads and writes."""

    run: RunDirectory

    @property
    def folder(self) -> Path:
        """The folder that contains verl's files."""
        return self.run.path.absolute() / "verl"

    @property
    def config(self) -> Path:
        """The configuration that Hydra reads."""
        return self.folder / "config.yaml"

    @property
    def command(self) -> Path:
        """A shell script with the command, for rerunning verl by hand."""
        return self.folder / "command.sh"

    @property
    def train(self) -> Path:
        """The training data, with prompts and references."""
        return self.folder / "train.parquet"

    @property
    def evaluation(self) -> Path:
        """The evaluation data, from the recipe's `eval_data`."""
        return self.folder / "eval.parquet"

    @property
    def rollouts(self) -> Path:
        """The folder with verl's rollout files, one per step. `gdpo analyze` reads this folder."""
        return self.folder / "rollouts"

    @property
    def metrics(self) -> Path:
        """The metrics that verl logs, one JSON line per step."""
        return self.folder / "metrics.jsonl"


def verl_config(resolved: Resolved, batches: Batches, machines: Machines) -> dict[str, Any]:
    """Return verl's configuration for a recipe.

    The recipe must have passed `check_fields`.

    Raises:
        ConfigError: If the recipe does not set `data.max_prompt_length`, or its estimator computes
            an advantage for each turn.
    """
    recipe = resolved.recipe
    longest = _longest_prompt(recipe) + field(recipe, "max_completion_length")
    files = VerlFiles(RunDirectory(recipe.run_dir))
    return {
        "hydra": {
            "searchpath": ["pkg://verl.trainer.config"],
            "run": {"dir": str(files.folder / "hydra")},
        },
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": _algorithm(resolved),
        "reward": _reward(resolved),
        "data": _data(recipe, files, batches),
        "actor_rollout_ref": {
            "model": _model(recipe),
            "actor": actor(recipe, batches, longest),
            "rollout": rollout(recipe, batches, longest),
            "ref": {"fsdp_config": {"param_offload": True}},
        },
        "trainer": _trainer(recipe, files, machines) | length(recipe, batches),
        **_modules(recipe),
    }


def own_fields(recipe: Recipe) -> dict[str, Any]:
    """Return the fields under `verl:` in a recipe, as a dict from dotted path to value."""
    return dict(_flat(recipe.verl, ""))


def _flat(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def with_fields(
    config: Mapping[str, Any], fields: Mapping[str, Any], *, place: str
) -> dict[str, Any]:
    """Return a copy of a configuration in which these fields are set.

    The keys of `fields` are dotted paths.

    Raises:
        ConfigError: If a path leads through a value that is not a mapping, or if a path refers to a
            mapping instead of a field.
    """
    config = copy.deepcopy(dict(config))
    for path, value in fields.items():
        inside, (*keys, last) = config, path.split(".")
        for key in keys:
            inner = inside.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{place}: {path!r} is not a verl field: {key!r} is {inner!r}, not a "
                    "mapping. Correct the path"
                )
            inside = cast("dict[str, Any]", inner)
        if isinstance(inside.get(last), dict):
            raise ConfigError(
                f"{place}: {path!r} is a mapping, not a field: set one of its fields "
                f"({', '.join(inside[last])})"
            )
        inside[last] = value
    return config


def _longest_prompt(recipe: Recipe) -> int:
    if recipe.data.max_prompt_length is None:
        raise ConfigError(
            f"{recipe.place('data')}: verl needs the maximum prompt length: set "
            "data.max_prompt_length (in tokens), for example --set data.max_prompt_length=2048. "
            "Rows with a longer prompt are left out"
        )
    return recipe.data.max_prompt_length


def _algorithm(resolved: Resolved) -> dict[str, Any]:
    recipe = resolved.recipe
    _refuse_turns(resolved)
    _refuse_filter(recipe)
    options = {**resolved.options, **_ranges(resolved)}
    return {
        "adv_estimator": f"{PREFIX}{recipe.advantage}",
        "use_kl_in_reward": False,
        "gdpo_reward_keys": list(resolved.names),
        "gdpo_reward_weights": list(resolved.weights),
        **({"gdpo_options": options} if options else {}),
        **({} if recipe.data.weights_column is None else {COLUMN: WEIGHTS_COLUMN}),
        # SCORE is the weighted sum, which compute_score returns in addition to the rewards.
        **({"filter_groups": {"enable": True, "metric": SCORE}} if filters_groups(recipe) else {}),
    }


def _refuse_turns(resolved: Resolved) -> None:
    recipe = resolved.recipe
    if resolved.rule.wants_turns:
        raise ConfigError(
            f"{recipe.place('advantage')}: advantage = {recipe.advantage} computes an advantage "
            "for each turn, which `gdpo launch verl` does not support yet: choose an estimator "
            "for rollouts, such as gdpo, or train with `gdpo train`"
        )


def _refuse_filter(recipe: Recipe) -> None:
    if recipe.data.weights_column is not None and filters_groups(recipe):
        raise ConfigError(
            f"{recipe.place('trainer', 'filter_groups')}: trainer.filter_groups and "
            "data.weights_column: verl filters by the sum with the configured weights, not with "
            "those of the prompt. Set trainer.filter_groups to off, or train with `gdpo train`"
        )


def _ranges(resolved: Resolved) -> dict[str, Any]:
    """Return the declared ranges of the rewards if the estimator needs ranges.

    verl does not pass ranges to an estimator.
    """
    wanted = signature(resolved.rule.estimator).parameters
    ranges: dict[str, Any] = {}
    for key, values in zip(("low", "high"), resolved.ranges, strict=True):
        given: Any = resolved.recipe.advantage_options.get(key, {})
        if key in wanted and isinstance(given, Mapping):
            named = {n: v for n, v in zip(resolved.names, values, strict=True) if isfinite(v)}
            ranges[key] = {**named, **cast("Mapping[str, Any]", given)}
    return ranges


def _reward(resolved: Resolved) -> dict[str, Any]:
    recipe, gates = resolved.recipe, resolved.gates
    kwargs: dict[str, Any] = {
        "task": recipe.task,
        "rewards": [_entry(entry.name, entry.options) for entry in recipe.rewards],
        "weights": list(resolved.weights),
        **recipe.scorer,
    }
    if gates:
        kwargs["gates"] = {name: asdict(gate) for name, gate in gates.items()}
    return {
        "custom_reward_function": {
            "path": PATH,
            "name": compute_score.__name__,
            "reward_kwargs": kwargs,
        },
        "reward_manager": {"name": TOKENS_MANAGER},
    }


def _entry(name: str, options: Mapping[str, Any]) -> Any:
    return {"name": name, "options": dict(options)} if options else name


def _data(recipe: Recipe, files: VerlFiles, batches: Batches) -> dict[str, Any]:
    # verl requires an evaluation file even if it never evaluates.
    evaluation = files.train if recipe.eval_data is None else files.evaluation
    return {
        "train_files": str(files.train),
        "val_files": str(evaluation),
        "val_max_samples": 1 if recipe.eval_data is None else -1,
        "train_batch_size": batches.prompts,
        "max_prompt_length": _longest_prompt(recipe),
        "filter_overlong_prompts": True,
        "max_response_length": field(recipe, "max_completion_length"),
        "seed": field(recipe, "seed"),
    }


def _model(recipe: Recipe) -> dict[str, Any]:
    local = Path(recipe.model).expanduser()
    path = str(local.absolute()) if local.is_dir() else recipe.model
    model: dict[str, Any] = {
        "path": str(converted_folder()) if recipe.model == SMOLLM2 else path,
        "enable_gradient_checkpointing": field(recipe, "gradient_checkpointing"),
    }
    if recipe.lora is not None:
        layers = recipe.lora.target_modules
        model |= {
            "lora_rank": recipe.lora.r,
            "lora_alpha": recipe.lora.alpha,
            "target_modules": layers if isinstance(layers, str) else list(layers),
        }
    return model


def _trainer(recipe: Recipe, files: VerlFiles, machines: Machines) -> dict[str, Any]:
    reporting = recipe.trainer.get("report_to") or "none"
    loggers = [reporting] if isinstance(reporting, str) else list(reporting)
    if wrong := [name for name in loggers if name not in _LOGGERS]:
        raise ConfigError(
            f"{recipe.place('trainer', 'report_to')}: verl does not support logger {wrong[0]!r}: "
            f"{did_you_mean(str(wrong[0]), _LOGGERS)}"
        )
    evaluated = recipe.eval_data is not None
    return {
        "project_name": "gdpo",
        "experiment_name": recipe.name,
        "logger": ["console", "file", *(name for name in loggers if name != "none")],
        "nnodes": machines.nodes,
        "n_gpus_per_node": machines.gpus,
        "default_local_dir": str(files.run.checkpoints.absolute()),
        "rollout_data_dir": str(files.rollouts),
        "max_actor_ckpt_to_keep": recipe.trainer.get("save_total_limit", 2),
        "resume_mode": "auto",
        "val_before_train": evaluated,
        "test_freq": _EVALUATED_EVERY if evaluated else -1,
    }


_LOGGERS = ("none", "wandb", "tensorboard", "mlflow", "swanlab", "trackio", "clearml")
"""Values of TRL's `report_to` that verl supports."""

_EVALUATED_EVERY = 20
"""Number of generations between evaluations."""


def _modules(recipe: Recipe) -> dict[str, Any]:
    """Return settings that pass `PYTHONPATH` to Ray's workers if the recipe uses user modules."""
    named = (recipe.task, recipe.advantage, *(entry.name for entry in recipe.rewards))
    if not any(":" in name for name in named):
        return {}
    places = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    joined = os.pathsep.join(place for place in places if place)
    return {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"PYTHONPATH": joined}}}}}
