"""Translates a recipe's `trainer:` fields (from TRL's GRPOConfig) to verl's configuration."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import FiniteFloat

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.lab.launch._trl_defaults import DEFAULTS, field
from gdpo.lab.launch.batches import Batches
from gdpo.lab.recipes.batches import filters_groups
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.trainer_fields import ELSEWHERE, misfit

_AGGREGATION: Mapping[str, str] = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""Maps TRL's `loss_type` to verl's `loss_agg_mode`."""

_SCHEDULERS = ("constant", "cosine")
"""Learning-rate schedulers that verl supports. `constant` also supports warmup."""

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
}
"""Fields for which verl supports only some values. With these values, verl trains like TRL."""

_NO_MATTER = (
    "logging_steps",
    "logging_strategy",
    "log_completions",
    "disable_tqdm",
    "report_to",
    "save_strategy",
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
"""Fields that affect only how TRL runs, or that this module or `_verl` reads separately."""

_FILTERED = (
    "trainer.filter_groups: verl replaces every group in which the weighted sum of the rewards "
    "does not vary, even if single rewards vary. `gdpo train` uses the rule that you have set"
)


def check_fields(recipe: Recipe) -> list[str]:
    """Check the `trainer:` fields, and return notes about fields that work differently in verl.

    Raises:
        ConfigError: If a field or its value has no counterpart in verl.
    """
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
        if name in _LIKE_TRL and value not in _LIKE_TRL[name]:
            allowed = " or ".join(str(each) for each in _LIKE_TRL[name])
            raise ConfigError(
                f"{place}: trainer.{name} = {value} has no counterpart in verl: set {allowed}, or "
                "train with `gdpo train`"
            )
        if name in DEFAULTS and (wrong := _wrong(name, value)):
            raise ConfigError(f"{place}: trainer.{name} {wrong}")
    _check_choices(recipe)
    return [_FILTERED] if filters_groups(recipe) else []


def _wrong(name: str, value: Any) -> str | None:
    """Return why a value is invalid, as the end of a sentence, or None if the value is valid."""
    default = DEFAULTS[name]
    if default is None:
        return misfit(name, value, FiniteFloat | None)
    if value is None:
        return f"is None: set a value of the same type as TRL's default, {default!r}"
    is_number = isinstance(default, float) or name == "warmup_steps"  # a value below 1 is a ratio
    return misfit(name, value, FiniteFloat if is_number else type(default))


def _check_choices(recipe: Recipe) -> None:
    if (strategy := field_or(recipe, "save_strategy", "steps")) not in ("steps", "no"):
        raise ConfigError(
            f"{recipe.place('trainer', 'save_strategy')}: trainer.save_strategy = {strategy} has "
            "no counterpart in verl: set save_strategy to steps or no"
        )
    for name, allowed in (("lr_scheduler_type", _SCHEDULERS), ("loss_type", tuple(_AGGREGATION))):
        value = field(recipe, name)
        if value not in allowed:
            default = "" if name in recipe.trainer else " (TRL's default)"
            raise ConfigError(
                f"{recipe.place('trainer', name)}: verl does not support trainer.{name} = "
                f"{value}{default}: set {' or '.join(allowed)}"
            )


def field_or(recipe: Recipe, name: str, default: Any) -> Any:
    """Return a `trainer:` field that has no counterpart in verl, or the default."""
    return recipe.trainer.get(name, default)


def actor(recipe: Recipe, batches: Batches, longest: int) -> dict[str, Any]:
    """Return verl's section `actor_rollout_ref.actor`, which sets the loss and the optimizer.

    `longest` is the maximum length of a prompt plus its response, in tokens.
    """
    low, beta = field(recipe, "epsilon"), field(recipe, "beta")
    high = field(recipe, "epsilon_high")
    given: dict[str, Any] = {
        "ppo_mini_batch_size": batches.prompts_per_update,
        # A forward pass takes at most the tokens of `micro_batch` rollouts of maximum length.
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": batches.micro_batch * longest,
        "ppo_epochs": batches.iterations,
        "clip_ratio": low,
        "clip_ratio_low": low,
        "clip_ratio_high": low if high is None else high,
        "clip_ratio_c": field(recipe, "delta") or _UNBOUNDED,
        "loss_agg_mode": _AGGREGATION[field(recipe, "loss_type")],
        "entropy_coeff": field(recipe, "entropy_coef"),
        "use_kl_loss": beta > 0,
        "kl_loss_coef": beta,
        "data_loader_seed": field(recipe, "seed"),
        "optim": _optimizer(recipe, batches),
        # hf_model is in the format of transformers, which `gdpo evaluate` reads.
        "checkpoint": {"save_contents": ["model", "optimizer", "extra", "hf_model"]},
    }
    if field(recipe, "loss_type") == "dr_grpo":
        given["loss_scale_factor"] = field(recipe, "max_completion_length")
    return given


def _optimizer(recipe: Recipe, batches: Batches) -> dict[str, Any]:
    warmup = field(recipe, "warmup_steps")
    share = 0 < warmup < 1  # TRL reads a value below 1 as a ratio
    return {
        "lr": field(recipe, "learning_rate"),
        "lr_scheduler_type": field(recipe, "lr_scheduler_type"),
        "lr_warmup_steps": -1 if share else batches.generations(warmup),
        "lr_warmup_steps_ratio": warmup if share else 0.0,
        "weight_decay": field(recipe, "weight_decay"),
        "betas": [field(recipe, "adam_beta1"), field(recipe, "adam_beta2")],
        "clip_grad": field(recipe, "max_grad_norm"),
    }


def rollout(recipe: Recipe, batches: Batches, longest: int) -> dict[str, Any]:
    """Return verl's section `actor_rollout_ref.rollout`, which sets how completions are sampled.

    vLLM's memory share stays at verl's default, because verl frees vLLM's cache during training,
    which TRL does not do by default. `longest` is the maximum length of a prompt plus its response,
    in tokens.
    """
    return {
        "name": "vllm",
        "n": batches.samples,
        "temperature": field(recipe, "temperature"),
        "top_p": field(recipe, "top_p"),
        "top_k": field(recipe, "top_k") or -1,
        "seed": field(recipe, "seed"),
        "tensor_model_parallel_size": field(recipe, "vllm_tensor_parallel_size"),
        "max_model_len": longest,
    }


def length(recipe: Recipe, batches: Batches) -> dict[str, Any]:
    """Return the `trainer` fields for the length of the run and the checkpoint interval.

    Raises:
        ConfigError: If the run has a fractional number of epochs.
    """
    steps = field(recipe, "max_steps")
    if steps > 0:
        total = batches.generations(steps)
        every = _save_every(recipe, batches, min(100, math.ceil(total / 10)), total)
        # Every epoch has at least one step, so this many epochs are always enough.
        return {"total_training_steps": total, "total_epochs": total, "save_freq": every}
    epochs = field(recipe, "num_train_epochs")
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
    """Return the number of generations between checkpoints, or -1 for no checkpoints."""
    if field_or(recipe, "save_strategy", "steps") == "no":
        return -1
    saved = field_or(recipe, "save_steps", None)
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
    return max(1, math.ceil(saved * total))


_SAVED_EVERY = 20
"""Number of generations between checkpoints if neither `save_steps` nor `max_steps` is set."""
