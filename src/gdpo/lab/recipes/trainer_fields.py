"""Checks the recipe's `trainer:` against TRL's configuration and builds that configuration."""

import dataclasses
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from gdpo._naming import nearest
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.lab.recipes.batches import processes, split_batch
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import Resolved
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
    "rollouts_dir": "rollouts are written to the run directory, `runs_dir`/`name`",
    "run_name": "use `name:` in the recipe",
    "resume_from_checkpoint": "resume with: gdpo train <recipe> --resume",
    "hub_token": _TOKEN,
    "push_to_hub_token": _TOKEN,
    "remove_unused_columns": "all columns are kept, because rewards need the reference of each row",
    "save_only_model": "resuming a run needs its optimizer and random state. At the end, the run's "
    "folder `model` contains only the model",
}
"""Fields of TRL's configuration that gdpo sets itself, and what to use instead."""

_LATE: Mapping[str, Any] = {
    "loss_type": Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "importance_sampling_level": Literal["token", "sequence"],
    "vllm_mode": Literal["colocate", "server"],
    "vllm_importance_sampling_mode": Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ],
    "temperature": Annotated[FiniteFloat, Field(gt=0)],
    "learning_rate": Annotated[FiniteFloat, Field(ge=0, le=1)],
    "max_completion_length": Annotated[int | None, Field(gt=0)],
    "num_iterations": Annotated[int, Field(gt=0)],
    "save_steps": Annotated[FiniteFloat, Field(gt=0)],
}
"""Types of fields whose values TRL 1.16 checks only after it has loaded the model, or never."""

_EVALUATED = 8
"""Number of rollouts per evaluation batch and process, which is TRL's default."""

_SOME_STEPS = 1000
"""Assumed number of steps while the number of rows is not known."""


def check_fields(recipe: Recipe) -> None:
    """Check the names and types of the `trainer:` fields, one by one.

    This imports TRL but loads no model.
    """
    types = _field_types()
    mistakes: list[str] = []
    for name, value in recipe.trainer.items():
        if name in ELSEWHERE:
            mistake = f"cannot be set here: {ELSEWHERE[name]}"
        elif name not in types:
            meant = f": did you mean {near!r}?" if (near := nearest(name, trainer_keys())) else ""
            mistake = f"is not a field of TRL's GRPOConfig{meant}"
        else:
            mistake = misfit(name, value, types[name])
        if mistake:
            mistakes.append(f"{recipe.place('trainer', name)}: trainer.{name} {mistake}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def misfit(name: str, value: Any, hint: Any) -> str | None:
    """Return why a value does not fit the type of a field, as the end of a sentence, or None."""
    strict = ConfigDict(strict=True, arbitrary_types_allowed=True)
    try:
        TypeAdapter[Any](_LATE.get(name, hint), config=strict).validate_python(value)
    except ValidationError as error:
        messages = dict.fromkeys(each["msg"] for each in error.errors())
        return f"is {value!r}: " + " or ".join(text[:1].lower() + text[1:] for text in messages)
    return None


def trainer_keys() -> set[str]:
    """Return the fields that `trainer:` may have. The set is empty if TRL is not installed."""
    try:
        return set(_field_types()) - set(ELSEWHERE)
    except MissingExtraError:
        return set()


def build_config(resolved: Resolved) -> "GDPOConfig":
    """Return the configuration of the trainer, without loading a model.

    By default, gdpo logs every step, reports to no tracking service, keeps the last two
    checkpoints, evaluates if the recipe has `eval_data:`, and uses bfloat16 only if the device
    supports it.

    Raises:
        ConfigError: If TRL rejects a field or a combination of fields.
        MissingExtraError: If TRL or torch is not installed.
    """
    recipe = resolved.recipe
    check_fields(recipe)
    import torch

    from gdpo.integrations.trl import GDPOConfig

    fields, split = recipe.trainer, split_batch(recipe, processes())
    on_cpu = fields.get("use_cpu", not torch.accelerator.is_available())
    has_bf16 = not on_cpu and (not torch.cuda.is_available() or torch.cuda.is_bf16_supported())
    samples = fields.get("num_generations_eval") or recipe.batch.samples
    least = samples // math.gcd(samples, processes())  # all processes together: whole groups
    gates = {name: dataclasses.asdict(gate) for name, gate in resolved.gates.items()}
    defaults: dict[str, Any] = {
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "steps",
        "save_total_limit": 2,
        "disable_tqdm": True,
        "eval_strategy": "no" if recipe.eval_data is None else "steps",
        "per_device_eval_batch_size": least * max(1, _EVALUATED // least),
        **({"use_cpu": True} if on_cpu else {}),
        **({} if has_bf16 else {"bf16": False}),
    }
    owned: dict[str, Any] = {
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
    try:
        config = GDPOConfig(**{**defaults, **fields, **owned})
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(
            f"{recipe.place('trainer')}: TRL rejects the fields of trainer: {error}"
        ) from error
    _refuse_late_errors(recipe, config)
    if config.use_vllm and config.vllm_max_model_length is None:
        # By default, vLLM reserves memory for a sequence of the full context length.
        data = [each for each in (recipe.data, recipe.eval_data) if each is not None]
        limits = [each.max_prompt_length for each in data if each.max_prompt_length is not None]
        if config.max_completion_length is not None and len(limits) == len(data):
            config.vllm_max_model_length = max(limits) + config.max_completion_length
    return config


def _refuse_late_errors(recipe: Recipe, config: "GDPOConfig") -> None:
    """Raise a ConfigError for what TRL reports only after it has loaded the model, or never."""
    from gdpo.integrations.trl.vllm_versions import check_vllm

    is_cpu = config.device.type == "cpu"
    has_liger = find_spec("liger_kernel") is not None
    for name, is_wrong, why in (
        (
            "eval_strategy",
            recipe.eval_data is None and config.eval_strategy != "no",
            "is set, but the recipe has no `eval_data:`. Add it, or remove this field",
        ),
        (
            "use_cpu",
            is_cpu and recipe.trainer.get("use_cpu") is False,
            "is false, but torch finds no accelerator. Remove it to train on the CPU",
        ),
        (
            "fp16",
            is_cpu and config.fp16,
            "has no effect on the CPU, where this run trains. Remove it, or use trainer.bf16",
        ),
        (
            "use_liger_kernel",
            config.use_liger_kernel and not has_liger,
            "is true, but liger-kernel is not installed. Install it with pip install liger-kernel, "
            "or train without it: --set trainer.use_liger_kernel=false",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"{recipe.place('trainer', name)}: trainer.{name} {why}")
    if config.use_vllm:
        try:
            check_vllm(same_process=config.vllm_mode == "colocate")
        except ConfigError as error:
            place = recipe.place("trainer", "use_vllm")
            raise ConfigError(f"{place}: {error} (--set trainer.use_vllm=false)") from error
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
    _refuse_scheduler(recipe, config)


def _refuse_scheduler(recipe: Recipe, config: "GDPOConfig") -> None:
    import torch
    from transformers import get_scheduler

    steps = config.max_steps if config.max_steps > 0 else _SOME_STEPS
    options: Any = config.lr_scheduler_kwargs
    try:
        get_scheduler(
            config.lr_scheduler_type,
            optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], config.learning_rate),
            num_warmup_steps=config.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=dict(options) if options else options,
        )
    except Exception as error:  # a scheduler may raise any error
        key = "lr_scheduler_kwargs" if options else "lr_scheduler_type"
        raise ConfigError(
            f"{recipe.place('trainer', key)}: trainer.{key} cannot create a learning rate "
            f"scheduler: {type(error).__name__}: {error}. Correct trainer.lr_scheduler_kwargs"
        ) from error


def _field_types() -> dict[str, Any]:
    try:
        from gdpo.integrations.trl import GDPOConfig
    except ModuleNotFoundError as error:
        package = (error.name or "trl").partition(".")[0]
        if package == "gdpo":
            raise
        raise MissingExtraError(package, "train", "to train a model") from error
    hints = get_type_hints(GDPOConfig)
    return {f.name: hints[f.name] for f in dataclasses.fields(GDPOConfig) if f.init}
