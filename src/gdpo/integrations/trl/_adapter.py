"""Names the parts of TRL that move between versions, and finds which of them are missing.

All decisions look at TRL itself, never at its version number. If a part is missing,
`refuse_missing` raises an error. For an optional capability, `lacks` and `tried` return the reason
for the log, and TRL's own code runs.
"""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gdpo.errors import ConfigError, MissingExtraError

logger = logging.getLogger(__name__)

TESTED = "1.12 to 1.16"
"""The versions of TRL that gdpo is tested with, for error messages."""

try:
    from trl.trainer.grpo_config import GRPOConfig as GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
except ModuleNotFoundError as error:
    if error.name != "requests":
        raise
    raise MissingExtraError(
        "requests",
        None,
        f"by the GRPO trainer of TRL {version('trl')}, which does not declare it (pip install "
        "requests, or install TRL 1.14 or newer)",
    ) from error

_SCORES = ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size")

_METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "trainer": {
        "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
        "_generate_and_score_completions": ("inputs",),
    },
    "turns": {"_generate": ("prompts",)},
    "fast_generation": {"_tokenize_prompts": ("prompts",), "_generate_single_turn": ()},
    "completion_only_head": {"_get_per_token_logps_and_entropies": _SCORES},
    "pack_micro_batches": {
        "_prepare_inputs": ("generation_batch",),
        "_compute_loss": ("model", "inputs"),
        "_get_per_token_logps_and_entropies": _SCORES,
    },
}
"""Maps each capability to the methods of TRL's trainer that it needs, with their parameters."""


def check_turns(args: Any) -> None:
    """Check that TRL marks which tokens the model generated, and takes one advantage per token."""
    if args.use_liger_kernel and getattr(GRPOTrainer, "compute_liger_loss", None):
        raise ConfigError(
            f"use_liger_kernel=True does not work with advantage={args.advantage!r}: the loss of "
            f"the Liger kernel in TRL {version('trl')} takes one advantage per rollout. Set "
            "use_liger_kernel=False"
        )
    refuse_missing("turns", f"advantage={args.advantage!r}")


def refuse_missing(capability: str, needed_by: str) -> None:
    if missing := _missing_methods(capability):
        raise ConfigError(
            f"{needed_by} needs {missing[0]}, which TRL {version('trl')} does not have. Install a "
            f"version of TRL that gdpo is tested with: {TESTED}"
        )


def lacks(capability: str) -> str | None:
    """Return which methods of an optional capability TRL's trainer does not have, or None."""
    missing = _missing_methods(capability)
    return f"TRL {version('trl')} has no {' and no '.join(missing)}" if missing else None


def tried(check: Callable[[], str | None]) -> str | None:
    """Return why a speed-up does not apply. If the check itself fails, its error is the reason.

    The speed-up is compared with the code it replaces, as it may use private parts of transformers
    or torch.
    """
    try:
        return check()
    except Exception as error:  # noqa: BLE001  whatever fails: the replaced code runs instead
        versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers", "torch"))
        return f"a trial with {versions} failed ({type(error).__name__}: {error})"


def epsilon(dtype: torch.dtype, *scores: torch.Tensor) -> float:
    """Return the relative rounding error of the scores of a model with the precision `dtype`.

    On a GPU at least 1e-3, because of TF32.
    """
    eps = max(torch.finfo(each).eps for each in (dtype, *(each.dtype for each in scores)))
    return max(eps, 1e-3) if scores[0].is_cuda else eps


def agree(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether the scores of a speed-up are those of the code that it replaces.

    Rounding in the precision `dtype` of the model is allowed: 3 % of the largest score in bfloat16,
    and 1e-5 in float32 (on a GPU 1 %). Infinite scores must be equal.
    """
    allowed = epsilon(dtype, ours, theirs) ** 0.7
    ours, theirs = ours.double(), theirs.double()
    largest = theirs[theirs.isfinite()].abs().max().clamp(min=1.0)
    return torch.allclose(ours, theirs, rtol=0, atol=allowed * float(largest))


def computed_in(trainer: Any) -> torch.dtype:
    mixed: dict[str, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return mixed.get(str(trainer.accelerator.mixed_precision), trainer.model.dtype)


def kept_random_states() -> Any:
    """Return a context that restores torch's random states of all devices at its end."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.random.fork_rng(devices)


def replaced(owner: Any, names: Sequence[str]) -> bool:
    """Return whether a user's code provides one of the methods of a trainer or its class.

    A subclass may override a method, and a script may replace it on the instance or on the class,
    even with a decorator that copies the name of the module.
    """
    methods = [method for name in names if (method := getattr(owner, name, None))]
    inner = [inspect.unwrap(each, stop=lambda f: not _of_known_code(f)) for each in methods]
    return not all(map(_of_known_code, inner))


_KNOWN = tuple(
    str(Path(str(spec.origin)).parent) + os.sep
    for name in ("trl", "gdpo", "transformers", "accelerate", "torch")
    if (spec := find_spec(name)) is not None
)
"""Folders of the code that is not the user's."""


def _of_known_code(function: Any) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_filename.startswith(_KNOWN)


def _missing_methods(capability: str) -> list[str]:
    missing: list[str] = []
    for name, parameters in _METHODS[capability].items():
        found, needed = getattr(GRPOTrainer, name, None), ("self", *parameters)
        taken = {} if found is None else inspect.signature(found).parameters
        # Users wrap TRL's methods with *args or **kwargs.
        of_any_name = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        takes_any = any(each.kind in of_any_name for each in taken.values())
        if not takes_any and not set(needed) <= set(taken):
            missing.append(f"GRPOTrainer.{name}({', '.join(needed)})")
    return missing


def end_token_ids(trainer: Any) -> list[int]:
    return getattr(trainer, "eos_token_ids", None) or [tokenizer_of(trainer).eos_token_id]


def tokenizer_of(trainer: Any) -> Any:
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def ends_of_text(trainer: Any) -> set[int]:
    return {*end_token_ids(trainer), tokenizer_of(trainer).pad_token_id}


def is_training(trainer: Any) -> bool:
    return bool(trainer.model and trainer.model.training)


def without_adapter(model: Any) -> Any:
    # Not with accelerate's `is_peft_model`, which reads the metadata of peft in each call.
    return getattr(model, "get_base_model", lambda: model)()


def say(trainer: Any, message: str) -> None:
    """Log a warning in the main process."""
    if trainer.accelerator.is_main_process:
        logger.warning("%s", message)


def is_async_callable(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)
