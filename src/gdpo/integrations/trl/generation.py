"""Provides a `rollout_func` for TRL that generates with transformers and skips padding.

It encodes each prompt once, and removes rows from the batch when they have finished. Transformers
processes and samples the logits, and TRL tokenizes the prompts.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import GenerationMixin

from gdpo.integrations.trl._adapter import (
    computed_in,
    end_token_ids,
    kept_random_states,
    lacks,
    replaced,
    say,
    tried,
    without_adapter,
)

COVERED_SETTINGS = frozenset(
    {
        "max_length",
        "max_new_tokens",
        "min_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "suppress_tokens",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    }
)
"""Fields of `GenerationConfig` that have the same effect as in `generate`. Each field is tested."""

_ORDINARY = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}
"""Default values of other fields. Many models set these fields explicitly."""

_BOOKKEEPING = ("transformers_version", "_from_model_config", "disable_compile", "compile_config")


def generated_by_other(trainer: Any) -> str | None:
    """Return why the trainer does not generate with `generate`, or None if it does."""
    if trainer.rollout_func is not None:
        return "the trainer has a rollout_func"
    if trainer.use_vllm:
        return "use_vllm is set"
    if trainer.use_transformers_continuous_batching:
        return "use_transformers_continuous_batching is set"
    if trainer.tools or trainer.environment_factories is not None:
        return "completions call tools"
    if replaced(trainer, ("_generate_single_turn",)):
        return f"{type(trainer).__name__} overrides _generate_single_turn"
    return None


def not_covered(trainer: Any) -> str | None:
    """Return why this module cannot generate for a trainer, or None if it can."""
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed and FSDP need the same number of decoding steps on all processes"
    if trainer._is_vlm:
        return "prompts may contain images"
    if trainer.args.neftune_noise_alpha is not None:
        return "neftune_noise_alpha is set, and all rows of a prompt would share its noise"
    if more := set(trainer._tokenizer.model_input_names) - {"input_ids", "attention_mask"}:
        return f"the tokenizer returns more than token ids: {', '.join(sorted(more))}"
    model = without_adapter(trainer.model)
    if reason := kind_not_covered(model) or _setting_not_covered(
        trainer.generation_config, model.generation_config
    ):
        return reason
    from gdpo.integrations.trl._sampling import difference_from_generate, unwrapped_model

    with trainer.accelerator.autocast():
        _try_to_complete(trainer)
        with unwrapped_model(trainer) as unwrapped:
            return difference_from_generate(
                unwrapped, trainer.generation_config, dtype=computed_in(trainer), training=True
            )


def _try_to_complete(trainer: Any) -> None:
    """Complete made-up prompts as in the training. An error means that TRL has changed a part."""
    trial = copy.copy(trainer)
    trial.args, trial.generation_config = map(copy.copy, (trial.args, trial.generation_config))
    trial.args.report_to = []
    trial.generation_config.max_new_tokens, trial.generation_config.min_new_tokens = 1, None
    before = trainer.model.training
    trainer.model.train()
    try:
        with kept_random_states():
            complete([[0], [0, 1]], trial)
    finally:
        trainer.model.train(before)


def model_not_covered(model: Any) -> str | None:
    """Return why this module cannot generate with a transformers model, or None if it can."""

    def reason() -> str | None:
        from gdpo.integrations.trl._sampling import difference_from_generate

        config = model.generation_config
        return kind_not_covered(model) or difference_from_generate(model, config)

    return tried(reason)


def of_rows(prompt_of_row: torch.Tensor) -> dict[str, Any]:
    """Return `generate`'s arguments for several rows of a prompt, given the prompt of each row."""
    from gdpo.integrations.trl._sampling import sample_rows

    return {"custom_generate": sample_rows, "prompt_of_row": prompt_of_row}


def kind_not_covered(model: Any) -> str | None:
    """Return why the rows of a prompt cannot share its cache, or None if they can."""
    from gdpo.integrations.trl._caches import cache_not_covered

    name, config = type(model).__name__, model.config
    if config.is_encoder_decoder:
        return f"{name} is an encoder-decoder"
    if config.get_text_config(decoder=True) is not config:
        return f"{name} is multimodal"
    transformers_own: Any = GenerationMixin
    if model.is_remote_code() or type(model).generate is not transformers_own.generate:
        return f"{name} has its own generation code"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} is split over several devices"
    if growing := growing_ropes(model):
        return f"the rotary frequencies of {name} depend on the length ({', '.join(growing)})"
    return cache_not_covered(model) or _dropout_not_covered(model)


_FIXED = {"default", "linear", "llama3", "proportional", "yarn"}
"""Types of rotary embedding whose frequencies are the same for all lengths."""


def ropes(model: Any) -> list[Mapping[str, Any]]:
    """Return the parameters of the rotary embeddings of a model, empty for layers without."""
    config = model.config.get_text_config()
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    return [rope] if "rope_type" in rope else [kind or {} for kind in rope.values()]


def growing_ropes(model: Any) -> set[str]:
    """Return the types of rotary embedding of a model whose frequencies depend on the length."""
    return {str(kind.get("rope_type")) for kind in ropes(model) if kind} - _FIXED


_READ = ("dropout", "attention_dropout", "hidden_dropout")
"""Fields of a configuration that some models read in each step."""


def dropouts(model: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each positive probability of dropout: the owner's name and attributes, and the key."""
    for name, owner in [("config", model.config), *model.named_modules()]:
        for key, value in vars(owner).items():
            counts = "drop" in key or "jitter" in key or isinstance(owner, nn.Dropout)
            counts = key in _READ if owner is model.config else counts
            if counts and isinstance(value, float) and value > 0:
                yield name, vars(owner), key


def _dropout_not_covered(model: Any) -> str | None:
    for name, own, key in dropouts(model):
        return (
            f"{name}.{key} is {own[key]}, and the rows of a prompt would share its dropout. Set "
            "disable_dropout=True, or set dropout to 0 in the model's configuration"
        )
    return None


def _setting_not_covered(chosen: Any, of_model: Any) -> str | None:
    settings: dict[str, Any] = of_model.to_dict()
    settings |= {k: v for k, v in chosen.to_dict().items() if v is not None}
    if settings.get("use_cache") is False:
        return "generation without a cache (use_cache=False)"
    for name, value in settings.items():
        known = name in COVERED_SETTINGS or name in _BOOKKEEPING
        if not known and value not in (None, False, _ORDINARY.get(name)):
            return f"the generation setting {name}={value!r}"
    return None


RolloutFunction: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
"""TRL's `rollout_func`: `(prompts, trainer) -> {"prompt_ids", "completion_ids", "logprobs"}`."""


def fast_rollouts(trainer: Any, *, wanted: bool | None = None) -> RolloutFunction | None:
    """Return the `rollout_func` for this trainer, or None if TRL must generate.

    Set it after TRL has created the trainer: `trainer.rollout_func = fast_rollouts(trainer)`.
    `wanted` selects the devices. None: only the CPU, where it is faster. True: every device. False:
    none. If it should be used but does not support the trainer, the main process logs the reason.

    Completions have the same distribution as TRL's, and greedy completions the same tokens. For the
    same seed, sampled completions differ, because no random numbers are drawn for finished rows.
    """
    on_cpu = trainer.accelerator.device.type == "cpu"
    if wanted is False or (wanted is None and not on_cpu):
        return None

    def fault() -> str | None:
        return None if generated_by_other(trainer) else not_covered(trainer)

    reason = lacks("fast_generation") or tried(fault)
    other = None if reason else generated_by_other(trainer)
    # The user has chosen the other way: no warning, unless this one was asked for too.
    if reason or (other and wanted):
        say(trainer, f"fast_generation does not apply, so TRL generates: {reason or other}")
    return None if reason or other else rollouts


def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Generate a completion for each prompt of a generation batch: one entry per completion.

    The result has lists of token ids in `prompt_ids` and `completion_ids`. Its `logprobs` is None,
    so the trainer computes the log-probabilities.
    """
    prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": complete(prompt_ids, trainer),
        "logprobs": None,
    }


def complete(prompt_ids: Sequence[Sequence[int]], trainer: Any) -> list[list[int]]:
    """Return the token ids of each completion, with the end token.

    Identical prompts are encoded once. As in TRL's own generation, the model is unwrapped and
    gradient checkpointing is off.
    """
    from trl.extras.profiling import profiling_context
    from trl.trainer.utils import pad

    from gdpo.integrations.trl._sampling import unwrapped_model

    places = {ids: i for i, ids in enumerate(dict.fromkeys(map(tuple, prompt_ids)))}
    device = trainer.accelerator.device
    prompts = [torch.tensor(ids, device=device) for ids in places]
    padded = partial(pad, padding_side="left", pad_to_multiple_of=trainer.pad_to_multiple_of)
    input_ids = padded(prompts, trainer._tokenizer.pad_token_id)
    attention_mask = padded([torch.ones_like(ids) for ids in prompts], 0)
    prompt_of_row = torch.tensor([places[tuple(ids)] for ids in prompt_ids], device=device)
    with profiling_context(trainer, "transformers.generate"), unwrapped_model(trainer) as model:
        sequences = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            generation_config=trainer.generation_config,
            **of_rows(prompt_of_row),
        )
    ends = set(end_token_ids(trainer))
    return [
        next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)
        for ids in sequences[:, input_ids.shape[1] :].tolist()
    ]
