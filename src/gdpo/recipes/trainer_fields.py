"""Checks the recipe's `trainer:` against TRL's configuration and builds that configuration."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gdpo._naming import did_you_mean, nearest
from gdpo.errors import ConfigError, GdpoError, MissingExtraError
from gdpo.recipes.batches import processes, split_batch
from gdpo.recipes.models import longest_rollout
from gdpo.recipes.recipe import Recipe
from gdpo.recipes.resolve import Resolved
from gdpo.rewards.weights_column import WEIGHTS_COLUMN

if TYPE_CHECKING:
    from gdpo.integrations.trl import GDPOConfig

_TOKEN = "a token in a recipe would be written to disk. Set the environment variable HF_TOKEN"

_SHARED = (
    "the recipe defines the batch for any number of processes. Set `batch.rollouts_per_step` and "
    "`batch.micro_batch`, the maximum number of rollouts in a forward pass"
)

ELSEWHERE: Mapping[str, str] = {
    "advantage": "use `advantage:` in the recipe",
    "advantage_options": "use `advantage_options:` in the recipe",
    "scorer": "use `scorer:` in the recipe",
    "gates": "set `gate:` in entries of `rewards:`",
    "reward_weights": "set `weight:` in each entry of `rewards:`",
    "multi_objective_aggregation": "set `advantage:` in the recipe (gdpo, grpo, …)",
    "scale_rewards": "set `advantage:` in the recipe: grpo divides by the group's standard "
    "deviation, grpo_no_std does not",
    "num_generations": "use `batch.samples` in the recipe",
    "generation_batch_size": "use `batch.prompts` and `batch.samples` in the recipe",
    "max_prompt_length": "use `data.max_prompt_length` in the recipe",
    "weights_column": "use `data.weights_column` in the recipe",
    "per_device_train_batch_size": _SHARED,
    "gradient_accumulation_steps": _SHARED,
    "steps_per_generation": _SHARED,
    "output_dir": "the run directory is `runs_dir`/`name`, as set in the recipe",
    "rollouts_dir": "rollouts go to the run directory, `runs_dir`/`name`",
    "run_name": "use `name:` in the recipe",
    "resume_from_checkpoint": "resume with: gdpo train <recipe> --resume",
    "hub_token": _TOKEN,
    "push_to_hub_token": _TOKEN,
    "remove_unused_columns": "all columns are kept, because rewards need the reference of each row",
}
"""Fields of TRL's configuration that gdpo sets itself, and what to use instead."""

_REFUSED: Mapping[str, tuple[Any, str]] = {
    "save_only_model": (
        True,
        "checkpoints without optimizer and random state cannot be resumed exactly. Remove "
        "save_only_model; at the end, the run's folder `model` contains only the model",
    ),
}
"""Values that TRL accepts but gdpo rejects, each with the reason."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "filter_groups": ("off", "any_reward_varies", "advantage_nonzero"),
    "vllm_mode": ("colocate", "server"),
    "vllm_importance_sampling_mode": (
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ),
}
"""Values that TRL 1.16 accepts. TRL itself checks the values only after the first generation."""

_DIVIDE = (
    " An evaluation batch needs whole groups. Make trainer.per_device_eval_batch_size × "
    "processes a "
    "multiple of batch.samples, or set trainer.num_generations_eval"
)

_EVALUATED = 8
"""Number of rollouts per evaluation batch and process, which is TRL's default."""

_SOME_STEPS = 1000
"""Assumed number of steps while the number of rows is not known."""

_POSITIVE = (
    "per_device_eval_batch_size",
    "num_iterations",
    "max_filter_rounds",
    "max_completion_length",
    "num_generations_eval",
    "num_train_epochs",
    "temperature",
    "logging_steps",
    "save_steps",
    "eval_steps",
)
_NOT_NEGATIVE = (
    "learning_rate",
    "beta",
    "epsilon",
    "weight_decay",
    "max_grad_norm",
    "warmup_steps",
)


def check_fields(recipe: Recipe) -> None:
    """Check the names, types and values of the recipe's `trainer:` fields, one field at a time.

    This check imports TRL but loads no model.

    Raises:
        ConfigError: If a field does not exist, must be set elsewhere, or has an invalid value.
    """
    types_of = _field_types()
    mistakes: list[str] = []
    for name, value in recipe.trainer.items():
        if (mistake := _mistake(name, value, types_of)) is not None:
            mistakes.append(f"{recipe.place('trainer', name)}: trainer.{name}{mistake}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def trainer_keys() -> set[str]:
    """Return the fields that `trainer:` may have. The set is empty if TRL is not installed."""
    try:
        return set(_field_types()) - set(ELSEWHERE)
    except MissingExtraError:
        return set()


def build_config(resolved: Resolved) -> "GDPOConfig":
    """Return the configuration of the trainer, without loading a model.

    The configuration combines the recipe's fields, the fields that gdpo sets, and TRL's defaults.
    Unless the recipe sets different values, gdpo logs every step, reports to no tracking service,
    keeps the last two checkpoints, evaluates if the recipe has `eval_data:`, and uses bfloat16 only
    if the device supports it.

    Raises:
        ConfigError: If TRL rejects a field or a combination of fields.
        MissingExtraError: If TRL or torch is not installed.
    """
    recipe = resolved.recipe
    check_fields(recipe)
    if recipe.eval_data is None and recipe.trainer.get("eval_strategy", "no") != "no":
        place = recipe.place("trainer", "eval_strategy")
        raise ConfigError(
            f"{place}: trainer.eval_strategy is set, but the recipe has no `eval_data:`. Add "
            "`eval_data:`, or remove trainer.eval_strategy"
        )
    _refuse_no_accelerator(recipe)
    try:
        config = _construct(resolved, recipe.trainer)
    except GdpoError:
        raise
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        culprits = [key for key in recipe.trainer if _builds_without(resolved, key)]
        place = recipe.place("trainer", *culprits[:1])
        keys = " or ".join(f"trainer.{key}" for key in culprits) or "trainer"
        remedy = _DIVIDE if "divisible" in str(error) else ""
        raise ConfigError(f"{place}: TRL rejects {keys}: {error}{remedy}") from error
    _refuse_this_machine(recipe, config)
    if config.use_vllm and config.vllm_max_model_length is None:
        # By default, vLLM reserves memory for a sequence of the full context length.
        config.vllm_max_model_length = longest_rollout(recipe, config.max_completion_length)
    _refuse_scheduler(recipe, config)
    return config


def _refuse_vllm(recipe: Recipe, config: "GDPOConfig") -> None:
    from gdpo.integrations.trl.vllm_versions import check_vllm

    try:
        check_vllm(same_process=config.vllm_mode == "colocate")
    except ConfigError as error:
        place = recipe.place("trainer", "use_vllm")
        raise ConfigError(f"{place}: {error} (--set trainer.use_vllm=false)") from error


def _refuse_no_accelerator(recipe: Recipe) -> None:
    """Raise a ConfigError if the recipe needs an accelerator but none is available.

    TRL does not report this problem.
    """
    import torch

    if recipe.trainer.get("use_cpu") is False and not torch.accelerator.is_available():
        raise ConfigError(
            f"{recipe.place('trainer', 'use_cpu')}: trainer.use_cpu is false, but torch finds no "
            "accelerator, only the CPU. Remove trainer.use_cpu to train on the CPU. If this "
            "machine "
            "has a GPU, install its driver and a build of torch for it"
        )


def _refuse_this_machine(recipe: Recipe, config: "GDPOConfig") -> None:
    """Raise a ConfigError for problems that TRL reports after loading the model, or not at all."""
    if config.fp16 and config.device.type == "cpu":
        raise ConfigError(
            f"{recipe.place('trainer', 'fp16')}: trainer.fp16 has no effect on the CPU, where "
            "this run "
            "trains. Remove trainer.fp16. trainer.bf16 works on a CPU"
        )
    if config.use_vllm:
        _refuse_vllm(recipe, config)
    if config.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError(
            f"{recipe.place('trainer', 'use_liger_kernel')}: trainer.use_liger_kernel is true, but "
            "liger-kernel is not installed. Install it with pip install liger-kernel, or train "
            "without it: --set trainer.use_liger_kernel=false"
        )
    if config.world_size != processes():
        raise ConfigError(
            f"this training run has {config.world_size} processes, but WORLD_SIZE is "
            f"{processes()}. Start it with `accelerate launch -m gdpo train ...` or torchrun"
        )
    if config.n_gpu > 1:
        raise ConfigError(
            f"{config.n_gpu} GPUs are visible, but only one process was started. Start one process "
            "per GPU with `accelerate launch -m gdpo train ...`, or use a single GPU: "
            "CUDA_VISIBLE_DEVICES=0"
        )


def _refuse_scheduler(recipe: Recipe, config: "GDPOConfig") -> None:
    """Raise a ConfigError if the learning rate scheduler cannot be created."""
    import torch
    from transformers import get_scheduler

    steps = config.max_steps if config.max_steps > 0 else _SOME_STEPS
    parameter = torch.nn.Parameter(torch.zeros(1))
    options: Any = config.lr_scheduler_kwargs
    try:
        get_scheduler(
            config.lr_scheduler_type,
            optimizer=torch.optim.SGD([parameter], lr=config.learning_rate),
            num_warmup_steps=config.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(options) if options else options,
        )
    except Exception as error:  # a scheduler may raise any error
        keys = [k for k in ("lr_scheduler_kwargs", "lr_scheduler_type") if k in recipe.trainer]
        named = " and ".join(f"trainer.{key}" for key in keys) or "trainer"
        raise ConfigError(
            f"{recipe.place('trainer', *keys[:1])}: {named}: transformers cannot create this "
            f"learning rate scheduler: {type(error).__name__}: {error}. Correct its arguments in "
            "trainer.lr_scheduler_kwargs"
        ) from error


def _construct(resolved: Resolved, fields: Mapping[str, Any]) -> "GDPOConfig":
    from gdpo.integrations.trl import GDPOConfig

    return GDPOConfig(**{**_defaults(resolved.recipe, fields), **fields, **_owned(resolved)})


def _builds_without(resolved: Resolved, key: str) -> bool:
    """Return True if TRL accepts the fields without this key, i.e. if this key causes the error."""
    try:
        fields = resolved.recipe.trainer
        _construct(resolved, {k: v for k, v in fields.items() if k != key})
    except (ValueError, TypeError, NotImplementedError, ImportError):
        return False
    return True


def _owned(resolved: Resolved) -> dict[str, Any]:
    recipe = resolved.recipe
    split = split_batch(recipe, processes())
    gates = {name: dataclasses.asdict(gate) for name, gate in resolved.gates.items()}
    return {
        "advantage": recipe.advantage,
        "advantage_options": resolved.options or None,
        "gates": gates or None,
        "scorer": recipe.scorer or None,
        "num_generations": recipe.batch.samples,
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.per_step,
        "steps_per_generation": split.per_generation,
        "output_dir": str(recipe.run_dir / "checkpoints"),
        "rollouts_dir": str(recipe.run_dir / "rollouts"),
        "reward_weights": list(resolved.weights),
        "weights_column": None if recipe.data.weights_column is None else WEIGHTS_COLUMN,
        "run_name": recipe.name,
    }


def _defaults(recipe: Recipe, fields: Mapping[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "steps",
        "save_total_limit": 2,
        "disable_tqdm": True,
        "eval_strategy": "no" if recipe.eval_data is None else "steps",
        "per_device_eval_batch_size": _evaluated_together(recipe, fields),
    }
    return defaults | _device_defaults(fields)


def _evaluated_together(recipe: Recipe, fields: Mapping[str, Any]) -> int:
    """Return the evaluation batch size per process.

    The size is about 8 rollouts, chosen so that the processes together evaluate whole groups.
    """
    samples = fields.get("num_generations_eval") or recipe.batch.samples
    least = samples // math.gcd(samples, processes())
    return least * max(1, _EVALUATED // least)


def _device_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `use_cpu` if no accelerator is available, and `bf16: False` if bfloat16 is not."""
    import torch

    on_cpu = fields.get("use_cpu", not torch.accelerator.is_available())
    has_bf16 = not on_cpu and (not torch.cuda.is_available() or torch.cuda.is_bf16_supported())
    defaults: dict[str, Any] = {"use_cpu": True} if on_cpu else {}
    return defaults if has_bf16 else {**defaults, "bf16": False}


def _field_types() -> dict[str, Any]:
    """Import TRL and return the fields of its configuration with their types."""
    try:
        from gdpo.integrations.trl import GDPOConfig
    except ModuleNotFoundError as error:
        package = (error.name or "trl").partition(".")[0]
        if package == "gdpo":
            raise
        raise MissingExtraError(package, "train", "to train a model") from error
    hints = get_type_hints(GDPOConfig)
    return {f.name: hints[f.name] for f in dataclasses.fields(GDPOConfig) if f.init}


def _mistake(name: str, value: Any, types_of: Mapping[str, Any]) -> str | None:
    """Return the end of a sentence that explains why a field is invalid. None: valid field."""
    if name in ELSEWHERE:
        return f" cannot be set here: {ELSEWHERE[name]}"
    if name not in types_of:
        near = nearest(name, set(types_of) - set(ELSEWHERE))
        meant = "" if near is None else f": did you mean {near!r}?"
        return f" is not a field of TRL's GRPOConfig{meant}"
    if name in _REFUSED and value == _REFUSED[name][0]:
        return f" cannot be {str(value).lower()}: {_REFUSED[name][1]}"
    allowed = _CHOICES.get(name) or _enumerated(types_of[name])
    if allowed and isinstance(value, str) and value not in allowed:
        return f" is {value!r}: {did_you_mean(value, allowed)}"
    if not _fits(types_of[name], value):
        return f" should be {_in_words(types_of[name])}, got {value!r}"
    return out_of_range(name, value)


def out_of_range(name: str, value: Any) -> str | None:
    """Return the end of a sentence that explains why a number is invalid. None: valid number."""
    bounds: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
        (_POSITIVE, lambda number: number > 0, "above 0"),
        (_NOT_NEGATIVE, lambda number: number >= 0, "0 or more"),
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    for names, fine, allowed in bounds:
        if name in names and not fine(value):
            return f" must be {allowed}, got {value}"
    return None


def _enumerated(hint: Any) -> tuple[str, ...]:
    """Return the values of the enumerations in a type, or an empty tuple if it has none."""
    kinds = [kind for kind in get_args(hint) if isinstance(kind, type) and issubclass(kind, Enum)]
    return tuple(str(member.value) for kind in kinds for member in kind)


def _fits(hint: Any, value: Any) -> bool:
    try:
        adapter = TypeAdapter[Any](
            hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True)
        )
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


_WORDS: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
    types.NoneType: "null",
}


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_in_words(part) for part in get_args(hint)))
    if origin is list:
        return f"a list of {_in_words(get_args(hint)[0])}"
    if origin is Literal:
        return " or ".join(str(option).lower() for option in get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "text"
    return _WORDS.get(origin or hint, getattr(hint, "__name__", str(hint)))
