"""Builds verl's configuration from a recipe and its `trainer:` fields (of TRL's GRPOConfig).

Hydra merges this configuration over verl's `ppo_trainer`. Fields that a recipe leaves out have
TRL's defaults. TRL counts rollouts and optimizer steps, verl counts prompts and generations.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from inspect import signature
from math import ceil, isfinite
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import FiniteFloat

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.integrations.rows import PREFIX
from gdpo.integrations.verl import compute_score
from gdpo.integrations.verl.scores import PATH, SCORE, TOKENS_MANAGER
from gdpo.integrations.verl.settings import COLUMN
from gdpo.lab.recipes.batches import filters_groups, split_batch
from gdpo.lab.recipes.models import SMOLLM2, converted_folder
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.recipes.trainer_fields import ELSEWHERE, misfit
from gdpo.lab.runs.directory import RunDirectory
from gdpo.rewards.gates import check_gates
from gdpo.rewards.weights_column import WEIGHTS_COLUMN

Section: TypeAlias = dict[str, Any]
"""A section of verl's configuration, or fields of the trainer."""

DEFAULTS: Section = {
    "num_iterations": 1,
    "max_completion_length": 512,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "max_grad_norm": 1.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "entropy_coef": 0.0,
    "loss_type": "dapo",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 42,
    "gradient_checkpointing": True,
    "vllm_tensor_parallel_size": 1,
}


def fields_of(recipe: Recipe) -> Section:
    """Return the `trainer:` fields of the recipe, with TRL's default for each that it lacks."""
    return {**DEFAULTS, **recipe.trainer}


@dataclass(frozen=True, slots=True)
class Machines:
    """Describes a cluster of nodes with the same number of GPUs each."""

    nodes: int
    gpus: int
    """Number of GPUs per node."""

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus", self.gpus)):
            if count < 1:
                raise ConfigError(f"{option}={count}: must be 1 or more")

    @property
    def processes(self) -> int:
        """Total number of GPUs, each with one process."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Batches:
    """Stores the batch sizes of one generation, summed over all GPUs."""

    prompts: int
    """Number of prompts per generation."""
    samples: int
    """Number of rollouts per prompt."""
    prompts_per_update: int
    """Number of prompts per optimizer step."""
    micro_batch: int
    """Number of rollouts of maximum length in a forward pass on one GPU."""
    iterations: int
    """Number of passes over each generation (TRL's `num_iterations`)."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps per generation."""
        return self.prompts // self.prompts_per_update * self.iterations

    def generations(self, optimizer_steps: float) -> int:
        """Return the number of generations for these optimizer steps, rounded up."""
        return ceil(optimizer_steps / self.updates)

    def lines(self) -> list[str]:
        """Return lines that explain the batch sizes."""
        rollouts = self.prompts * self.samples
        per_update = self.prompts_per_update * self.samples
        return [
            f"{self.prompts:,} prompts × {self.samples} samples = {rollouts:,} rollouts per "
            "generation (one step of verl)",
            f"optimizer steps per generation: {self.updates:,}, each on {per_update:,} rollouts",
        ]


def plan(recipe: Recipe, machines: Machines) -> Batches:
    """Return the batch sizes of a recipe. Only `micro_batch` depends on the number of machines."""
    batch = recipe.batch
    if batch.per_step % batch.samples:
        raise ConfigError(
            f"{recipe.place('batch', 'rollouts_per_step')}: verl trains on whole groups, but "
            f"{batch.per_step} rollouts per step is not a multiple of batch.samples: use a "
            f"multiple of {batch.samples}"
        )
    return Batches(
        prompts=batch.prompts,
        samples=batch.samples,
        prompts_per_update=batch.per_step // batch.samples,
        micro_batch=split_batch(recipe, machines.processes).micro_batch,
        iterations=fields_of(recipe)["num_iterations"],
    )


_AGGREGATION: Mapping[str, str] = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""Maps TRL's `loss_type` to verl's `loss_agg_mode`."""

_UNBOUNDED = 1e9
"""Value of `clip_ratio_c` that disables verl's bound on the ratio for negative advantages.

TRL applies such a bound only if `delta` is set.
"""

_LIKE_TRL: Mapping[str, tuple[Any, ...]] = {
    "bf16": (True, None),
    "use_vllm": (True, False),
    "vllm_mode": ("colocate",),
    "importance_sampling_level": ("token",),
    "mask_truncated_completions": (False,),
    "use_cpu": (False,),
    "optim": ("adamw_torch", "adamw_torch_fused"),
    "shuffle_dataset": (True,),
    "repetition_penalty": (1.0,),
    "min_p": (None,),
    "adam_epsilon": (1e-8,),
    "disable_dropout": (True, False),
    "save_strategy": ("steps", "no"),
    "lr_scheduler_type": ("constant", "cosine"),
    "loss_type": tuple(_AGGREGATION),
}
"""Fields for which verl supports only some values. With these values, verl trains like TRL.

`constant` also supports warmup.
"""

_NO_MATTER = (
    "logging_steps",
    "logging_strategy",
    "log_completions",
    "disable_tqdm",
    "report_to",
    "save_total_limit",
    "save_steps",
    "per_device_eval_batch_size",
    "eval_strategy",
    "eval_steps",
    "pack_micro_batches",
    "completion_only_head",
    "fast_generation",
    "filter_groups",
    "max_filter_rounds",
    "vllm_gpu_memory_utilization",
    "vllm_max_model_length",
    "ddp_timeout",
    "dataloader_num_workers",
)
"""Fields that affect only how TRL runs, or that this module reads separately."""

_FILTERED = (
    "trainer.filter_groups: verl replaces every group in which the weighted sum of the rewards "
    "does not vary, even if individual rewards vary. `gdpo train` uses the rule that you have set"
)


def check_fields(recipe: Recipe) -> list[str]:
    """Check the `trainer:` fields, and return notes about fields that work differently in verl."""
    known = {*DEFAULTS, *_LIKE_TRL, *_NO_MATTER}
    for name, value in recipe.trainer.items():
        place = recipe.place("trainer", name)
        if name in ELSEWHERE:
            raise ConfigError(f"{place}: trainer.{name} cannot be set here: {ELSEWHERE[name]}")
        if name not in known:
            raise ConfigError(
                f"{place}: trainer.{name} has no known counterpart in verl: "
                f"{did_you_mean(name, known)}. To set a verl option directly, add it after "
                "`--`, for example `-- actor_rollout_ref.actor.strategy=fsdp2`"
            )
        if name in DEFAULTS and (wrong := _wrong(name, value)):
            raise ConfigError(f"{place}: trainer.{name} {wrong}")
    for name, allowed in _LIKE_TRL.items():
        value = recipe.trainer.get(name, DEFAULTS.get(name, allowed[0]))
        if value not in allowed:
            default = "" if name in recipe.trainer else " (TRL's default)"
            raise ConfigError(
                f"{recipe.place('trainer', name)}: trainer.{name} = {value}{default} has no "
                f"counterpart in verl: set {' or '.join(map(str, allowed))}, or train with "
                "`gdpo train`"
            )
    return [_FILTERED] if filters_groups(recipe) else []


def _wrong(name: str, value: Any) -> str | None:
    """Return why a value is invalid, as the end of a sentence, or None."""
    default = DEFAULTS[name]
    if default is None:
        return misfit(name, value, FiniteFloat | None)
    if value is None:
        return f"is None: set a value of the same type as TRL's default, {default!r}"
    is_number = isinstance(default, float) or name == "warmup_steps"  # a value below 1 is a ratio
    return misfit(name, value, FiniteFloat if is_number else type(default))


class VerlFiles:
    """Holds the paths in the run directory that verl reads and writes."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.folder = run.path.absolute() / "verl"
        self.config = self.folder / "config.yaml"
        """The configuration that Hydra reads."""
        self.command = self.folder / "command.sh"
        """A shell script with the command, for rerunning verl by hand."""
        self.train = self.folder / "train.parquet"
        self.evaluation = self.folder / "eval.parquet"
        self.rollouts = self.folder / "rollouts"
        """The folder with verl's rollout files, one per step. `gdpo analyze` reads this folder."""
        self.metrics = self.folder / "metrics.jsonl"
        """The metrics that verl logs, one JSON line per step."""


def verl_config(resolved: Resolved, batches: Batches, machines: Machines) -> Section:
    """Return verl's configuration for a recipe that has passed `check_fields`."""
    recipe = resolved.recipe
    fields, longest_prompt = fields_of(recipe), _longest_prompt(recipe)
    longest = longest_prompt + fields["max_completion_length"]
    files = VerlFiles(RunDirectory(recipe.run_dir))
    # verl requires an evaluation file even if it never evaluates.
    evaluation = files.train if recipe.eval_data is None else files.evaluation
    return {
        "hydra": {
            "searchpath": ["pkg://verl.trainer.config"],
            "run": {"dir": str(files.folder / "hydra")},
        },
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": _algorithm(resolved),
        "reward": _reward(resolved),
        "data": {
            "train_files": str(files.train),
            "val_files": str(evaluation),
            "val_max_samples": 1 if recipe.eval_data is None else -1,
            "train_batch_size": batches.prompts,
            "max_prompt_length": longest_prompt,
            "filter_overlong_prompts": True,
            "max_response_length": fields["max_completion_length"],
            "seed": fields["seed"],
        },
        "actor_rollout_ref": {
            "model": _model(recipe),
            "actor": _actor(recipe, batches, longest),
            # vLLM's memory share is verl's default: verl frees vLLM's cache during training.
            "rollout": {
                "name": "vllm",
                "n": batches.samples,
                "temperature": fields["temperature"],
                "top_p": fields["top_p"],
                "top_k": fields["top_k"] or -1,
                "seed": fields["seed"],
                "tensor_model_parallel_size": fields["vllm_tensor_parallel_size"],
                "max_model_len": longest,
            },
            "ref": {"fsdp_config": {"param_offload": True}},
        },
        "trainer": _trainer(recipe, files, machines) | _length(recipe, batches),
        **_modules(recipe),
    }


def with_fields(config: Section, fields: Section, *, place: str) -> Section:
    """Return a copy of a configuration with the fields at these dotted paths set."""
    config = copy.deepcopy(dict(config))
    for path, value in fields.items():
        inside, (*keys, last) = config, path.split(".")
        for key in keys:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ConfigError(
                    f"{place}: {path!r} is not a verl field: {key!r} is {inside!r}, not a "
                    "mapping. Correct the path"
                )
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


def _algorithm(resolved: Resolved) -> Section:
    recipe = resolved.recipe
    if resolved.rule.wants_turns:
        raise ConfigError(
            f"{recipe.place('advantage')}: advantage = {recipe.advantage} computes an advantage "
            "for each turn, which `gdpo launch verl` does not support yet: choose an estimator "
            "for rollouts, such as gdpo, or train with `gdpo train`"
        )
    if recipe.data.weights_column is not None and filters_groups(recipe):
        raise ConfigError(
            f"{recipe.place('trainer', 'filter_groups')}: trainer.filter_groups and "
            "data.weights_column: verl filters by the sum with the configured weights, not with "
            "those of the prompt. Set trainer.filter_groups to off, or train with `gdpo train`"
        )
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


def _ranges(resolved: Resolved) -> Section:
    """Return the declared ranges that the estimator needs, because verl does not pass them."""
    wanted = signature(resolved.rule.estimator).parameters
    ranges: Section = {}
    for key, values in zip(("low", "high"), resolved.ranges, strict=True):
        given = resolved.recipe.advantage_options.get(key, {})
        if key in wanted and isinstance(given, Mapping):
            named = {n: v for n, v in zip(resolved.names, values, strict=True) if isfinite(v)}
            ranges[key] = {**named, **given}
    return ranges


def _reward(resolved: Resolved) -> Section:
    recipe, gates = resolved.recipe, resolved.gates
    kwargs: Section = {
        "task": recipe.task,
        "rewards": [
            {"name": each.name, "options": dict(each.options)} if each.options else each.name
            for each in recipe.rewards
        ],
        "weights": list(resolved.weights),
        **recipe.scorer,
    }
    check_gates(resolved.names, gates, grouped=False)
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


def _model(recipe: Recipe) -> Section:
    local = Path(recipe.initial_model).expanduser()
    path = str(local.absolute()) if local.is_dir() else recipe.initial_model
    model: Section = {
        "path": str(converted_folder()) if recipe.model == SMOLLM2 else path,
        "enable_gradient_checkpointing": fields_of(recipe)["gradient_checkpointing"],
    }
    if recipe.lora is not None:
        layers = recipe.lora.target_modules
        model |= {
            "lora_rank": recipe.lora.r,
            "lora_alpha": recipe.lora.alpha,
            "target_modules": layers if isinstance(layers, str) else list(layers),
        }
    return model


def _trainer(recipe: Recipe, files: VerlFiles, machines: Machines) -> Section:
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


def _modules(recipe: Recipe) -> Section:
    """Return settings that pass `PYTHONPATH` to Ray's workers, for a user's modules."""
    named = (recipe.task, recipe.advantage, *(entry.name for entry in recipe.rewards))
    if not any(":" in name for name in named):
        return {}
    places = [str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    joined = os.pathsep.join(place for place in places if place)
    return {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"PYTHONPATH": joined}}}}}


def _actor(recipe: Recipe, batches: Batches, longest: int) -> Section:
    """Return verl's section `actor`. `longest` is the maximum prompt plus response in tokens."""
    fields = fields_of(recipe)
    low, beta = fields["epsilon"], fields["beta"]
    high, warmup = fields["epsilon_high"], fields["warmup_steps"]
    share = 0 < warmup < 1  # TRL reads a value below 1 as a ratio
    given: Section = {
        "ppo_mini_batch_size": batches.prompts_per_update,
        # A forward pass takes at most the tokens of `micro_batch` rollouts of maximum length.
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": batches.micro_batch * longest,
        "ppo_epochs": batches.iterations,
        "clip_ratio": low,
        "clip_ratio_low": low,
        "clip_ratio_high": low if high is None else high,
        "clip_ratio_c": fields["delta"] or _UNBOUNDED,
        "loss_agg_mode": _AGGREGATION[fields["loss_type"]],
        "entropy_coeff": fields["entropy_coef"],
        "use_kl_loss": beta > 0,
        "kl_loss_coef": beta,
        "data_loader_seed": fields["seed"],
        "optim": {
            "lr": fields["learning_rate"],
            "lr_scheduler_type": fields["lr_scheduler_type"],
            "lr_warmup_steps": -1 if share else batches.generations(warmup),
            "lr_warmup_steps_ratio": warmup if share else 0.0,
            "weight_decay": fields["weight_decay"],
            "betas": [fields["adam_beta1"], fields["adam_beta2"]],
            "clip_grad": fields["max_grad_norm"],
        },
        # hf_model is in the format of transformers, which `gdpo evaluate` reads.
        "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
    }
    if fields["loss_type"] == "dr_grpo":
        given["loss_scale_factor"] = fields["max_completion_length"]
    return given


def _length(recipe: Recipe, batches: Batches) -> Section:
    """Return the `trainer` fields for the run's length and checkpoint interval."""
    fields = fields_of(recipe)
    steps = fields["max_steps"]
    if steps > 0:
        total = batches.generations(steps)
        every = _save_every(recipe, batches, min(100, ceil(total / 10)), total)
        # Every epoch has at least one step, so this many epochs are always enough.
        return {"total_training_steps": total, "total_epochs": total, "save_freq": every}
    epochs = fields["num_train_epochs"]
    if epochs != int(epochs):
        raise ConfigError(
            f"{recipe.place('trainer', 'num_train_epochs')}: verl trains only whole epochs, but "
            f"trainer.num_train_epochs = {epochs}: set an integer, or set trainer.max_steps"
        )
    return {
        "total_epochs": int(epochs),
        "save_freq": _save_every(recipe, batches, _SAVED_EVERY, None),
    }


def _save_every(recipe: Recipe, batches: Batches, usual: int, total: int | None) -> int:
    """Return the number of generations between checkpoints, or -1 for none."""
    if recipe.trainer.get("save_strategy", "steps") == "no":
        return -1
    saved = recipe.trainer.get("save_steps")
    if saved is None:
        return usual
    if saved >= 1:
        return batches.generations(saved)
    if total is None:
        raise ConfigError(
            f"{recipe.place('trainer', 'save_steps')}: trainer.save_steps = {saved} is a fraction "
            "of the run, but the number of steps is not known if the run is limited by epochs: set "
            "save_steps to a number of steps"
        )
    return max(1, ceil(saved * total))


_SAVED_EVERY = 20
"""Number of generations between checkpoints if neither `save_steps` nor `max_steps` is set."""
