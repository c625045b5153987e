"""The recipe's `trainer:`, checked against TRL's configuration and turned into it."""

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

if TYPE_CHECKING:
    from gdpo.integrations.trl import GDPOConfig

_TOKEN = "a token in a recipe would be written to disk; set the environment variable HF_TOKEN"

_SHARED = (
    "the recipe says what is trained on together, and every number of processes shares it: "
    "`batch.rollouts_per_step`, with forward passes of at most `batch.micro_batch` rollouts"
)

ELSEWHERE: Mapping[str, str] = {
    "advantage": "it is `advantage:` of the recipe",
    "advantage_options": "it is `advantage_options:` of the recipe",
    "scorer": "it is `scorer:` of the recipe",
    "gates": "give entries of `rewards:` their `gate:`",
    "reward_weights": "give each entry of `rewards:` its `weight:`",
    "multi_objective_aggregation": "choose `advantage:` of the recipe (gdpo, grpo, …)",
    "scale_rewards": "choose `advantage:` of the recipe: grpo divides by the group's standard "
    "deviation, grpo_no_std does not",
    "num_generations": "it is `batch.samples` of the recipe",
    "generation_batch_size": "it is `batch.prompts` × `batch.samples` of the recipe",
    "max_prompt_length": "it is `data.max_prompt_length` of the recipe",
    "per_device_train_batch_size": _SHARED,
    "gradient_accumulation_steps": _SHARED,
    "steps_per_generation": _SHARED,
    "output_dir": "a run lies in `runs_dir`/`name` of the recipe",
    "rollouts_dir": "rollouts go to the run's folder, `runs_dir`/`name`",
    "run_name": "it is `name:` of the recipe",
    "resume_from_checkpoint": "resume with: gdpo train <recipe> --resume",
    "hub_token": _TOKEN,
    "push_to_hub_token": _TOKEN,
    "remove_unused_columns": "rewards need every row's reference, so all columns are kept",
}
"""Fields of TRL's configuration that gdpo sets itself, and where a user sets them instead."""

_REFUSED: Mapping[str, tuple[Any, str]] = {
    "save_only_model": (
        True,
        "its checkpoints hold neither optimizer nor random state, so that a run could not be "
        "resumed exactly; the model alone lies in the run's folder `model` at the end",
    ),
}
"""Values that TRL takes and gdpo does not, and why."""

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
"""What TRL 1.16 takes; it looks at these only after the first generation."""

_DIVIDE = (
    " An evaluation holds whole groups: make trainer.per_device_eval_batch_size × processes a "
    "multiple of batch.samples, or set trainer.num_generations_eval"
)

_EVALUATED = 8
"""Rollouts that a process evaluates together: TRL's default."""

_SOME_STEPS = 1000
"""Length of a run whose length is not known yet: it is decided by the number of its rows."""

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
    """Check names, types and single values of the recipe's `trainer:`. Imports TRL, loads no model.

    Raises:
        ConfigError: A field does not exist, is set elsewhere, or has a value that TRL would refuse.
    """
    types_of = _field_types()
    mistakes: list[str] = []
    for name, value in recipe.trainer.items():
        if (mistake := _mistake(name, value, types_of)) is not None:
            mistakes.append(f"{recipe.place('trainer', name)}: trainer.{name}{mistake}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def trainer_keys() -> set[str]:
    """The fields that a recipe's `trainer:` may have; none where TRL is not installed."""
    try:
        return set(_field_types()) - set(ELSEWHERE)
    except MissingExtraError:
        return set()


def build_config(resolved: Resolved) -> "GDPOConfig":
    """The trainer's configuration: the recipe's fields, gdpo's own, and TRL's defaults.

    Where the recipe says nothing, gdpo logs every step, reports to no service, keeps the last two
    checkpoints, evaluates when there is data for it, and uses bfloat16 only where the device has
    it. Loads no model.

    Raises:
        ConfigError: TRL refuses a field, or a combination of them.
        MissingExtraError: TRL or torch is not installed.
    """
    recipe = resolved.recipe
    check_fields(recipe)
    if recipe.eval_data is None and recipe.trainer.get("eval_strategy", "no") != "no":
        place = recipe.place("trainer", "eval_strategy")
        raise ConfigError(
            f"{place}: trainer.eval_strategy is set, but there is no `eval_data:`; add it"
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
        raise ConfigError(f"{place}: {keys}: TRL refuses it: {error}{remedy}") from error
    _refuse_this_machine(recipe, config)
    if config.use_vllm and config.vllm_max_model_length is None:
        # Else vLLM would keep room for as long a sequence as the model can see.
        config.vllm_max_model_length = longest_rollout(recipe, config.max_completion_length)
    _refuse_scheduler(recipe, config)
    return config


def _refuse_no_accelerator(recipe: Recipe) -> None:
    """Raise a ConfigError where the recipe wants what is not there: TRL speaks of bf16 at most."""
    import torch

    if recipe.trainer.get("use_cpu") is False and not torch.accelerator.is_available():
        raise ConfigError(
            f"{recipe.place('trainer', 'use_cpu')}: trainer.use_cpu is false, but torch finds no "
            "accelerator here, only the CPU. Leave trainer.use_cpu out to train on what there is; "
            "a GPU that should be here needs its driver and a torch that is built for it"
        )


def _refuse_this_machine(recipe: Recipe, config: "GDPOConfig") -> None:
    """Raise a ConfigError where TRL would, but only after the model is loaded, or never."""
    if config.fp16 and config.device.type == "cpu":
        raise ConfigError(
            f"{recipe.place('trainer', 'fp16')}: trainer.fp16 is true, and the run is on the CPU, "
            "where it changes nothing. Leave it out; trainer.bf16 works on a CPU"
        )
    if config.use_vllm and find_spec("vllm") is None:
        raise ConfigError(
            f"{recipe.place('trainer', 'use_vllm')}: trainer.use_vllm is true, but vllm is not "
            "installed: pip install 'trl[vllm]', or generate without it, more slowly: "
            "--set trainer.use_vllm=false"
        )
    if config.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError(
            f"{recipe.place('trainer', 'use_liger_kernel')}: trainer.use_liger_kernel is true, but "
            "liger-kernel is not installed: pip install liger-kernel, or train without it: "
            "--set trainer.use_liger_kernel=false"
        )
    if config.world_size != processes():
        raise ConfigError(
            f"this training has {config.world_size} processes, and WORLD_SIZE says "
            f"{processes()}: start it with `accelerate launch -m gdpo train ...` or torchrun"
        )
    if config.n_gpu > 1:
        raise ConfigError(
            f"{config.n_gpu} GPUs are visible to one process: start one per GPU with "
            "`accelerate launch -m gdpo train ...`, or show it a single one with "
            "CUDA_VISIBLE_DEVICES=0"
        )


def _refuse_scheduler(recipe: Recipe, config: "GDPOConfig") -> None:
    """Raise a ConfigError where the Trainer would, but only when it starts to train."""
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
    except Exception as error:  # a scheduler may raise anything at arguments that it does not know
        keys = [k for k in ("lr_scheduler_kwargs", "lr_scheduler_type") if k in recipe.trainer]
        named = " and ".join(f"trainer.{key}" for key in keys) or "trainer"
        raise ConfigError(
            f"{recipe.place('trainer', *keys[:1])}: {named}: transformers cannot make this "
            f"learning rate scheduler: {type(error).__name__}: {error}. Its arguments go into "
            "trainer.lr_scheduler_kwargs"
        ) from error


def _construct(resolved: Resolved, fields: Mapping[str, Any]) -> "GDPOConfig":
    from gdpo.integrations.trl import GDPOConfig

    return GDPOConfig(**{**_defaults(resolved.recipe, fields), **fields, **_owned(resolved)})


def _builds_without(resolved: Resolved, key: str) -> bool:
    """Whether TRL takes the rest of the fields: then this one is (part of) the mistake."""
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
        "advantage_options": recipe.advantage_options or None,
        "gates": gates or None,
        "scorer": recipe.scorer or None,
        "num_generations": recipe.batch.samples,
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.per_step,
        "steps_per_generation": split.per_generation,
        "output_dir": str(recipe.run_dir / "checkpoints"),
        "rollouts_dir": str(recipe.run_dir / "rollouts"),
        "reward_weights": [reward.weight for reward in recipe.rewards],
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
    """Return about 8 rollouts for each process, so that all of them hold whole groups."""
    samples = fields.get("num_generations_eval") or recipe.batch.samples
    least = samples // math.gcd(samples, processes())
    return least * max(1, _EVALUATED // least)


def _device_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`use_cpu` where there is nothing else, and no bfloat16 where the device has none."""
    import torch

    on_cpu = fields.get("use_cpu", not torch.accelerator.is_available())
    has_bf16 = not on_cpu and (not torch.cuda.is_available() or torch.cuda.is_bf16_supported())
    defaults: dict[str, Any] = {"use_cpu": True} if on_cpu else {}
    return defaults if has_bf16 else {**defaults, "bf16": False}


def _field_types() -> dict[str, Any]:
    """What the recipe may set, with its type. The import of TRL happens here."""
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
    """What is wrong with a field, as the rest of a sentence; None if nothing is."""
    if name in ELSEWHERE:
        return f" is not set here: {ELSEWHERE[name]}"
    if name not in types_of:
        near = nearest(name, set(types_of) - set(ELSEWHERE))
        meant = "" if near is None else f": did you mean {near!r}?"
        return f" is no field of TRL's GRPOConfig{meant}"
    if name in _REFUSED and value == _REFUSED[name][0]:
        return f" cannot be {str(value).lower()}: {_REFUSED[name][1]}"
    allowed = _CHOICES.get(name) or _enumerated(types_of[name])
    if allowed and isinstance(value, str) and value not in allowed:
        return f" is {value!r}: {did_you_mean(value, allowed)}"
    if not _fits(types_of[name], value):
        return f" should be {_in_words(types_of[name])}, got {value!r}"
    return out_of_range(name, value)


def out_of_range(name: str, value: Any) -> str | None:
    """What is wrong with a number, as the rest of a sentence; None if nothing is."""
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
    """The values of the enumeration in a type, if there is one."""
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
    int: "a whole number",
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
