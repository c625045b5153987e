"""Completions without vLLM and without the waste of padding: TRL's `rollout_func`.

A generation batch holds each prompt many times, and its rows end at different lengths. Here a
prompt is read once, and rows that have ended leave the batch; what is sampled, and how, stays
transformers' own. Tokenization stays TRL's.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from trl.extras.profiling import profiling_context
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.utils import pad

from gdpo.integrations.trl._generation_coverage import generated_by_other, not_covered
from gdpo.integrations.trl._generation_loop import sample_rows

logger = logging.getLogger(__name__)

RolloutFunction: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
"""`(prompts, trainer) -> {"prompt_ids", "completion_ids", "logprobs"}`: TRL's `rollout_func`."""


def fast_rollouts(trainer: Any, *, wanted: bool | None = None) -> RolloutFunction | None:
    """The `rollout_func` for this trainer, or None where TRL's own generation is to stay.

    To be set when TRL has made the trainer: `trainer.rollout_func = fast_rollouts(trainer)`.

    Completions have the same distribution as TRL's: the same logits, processed and sampled by
    transformers from the generation configuration that TRL made. Greedy ones are the same tokens.
    Sampled ones are others for the same seed: rows that have ended draw no random numbers.

    It does not cover, and leaves to TRL: vLLM, continuous batching, a `rollout_func` of the user's,
    tools and environments; DeepSpeed and FSDP; encoder-decoders, multimodal models, models on
    several devices, with another cache than that of full or sliding attention, or with generation
    code of their own; adapters that are learnt prompts; dropout that is not 0 (TRL samples with
    dropout on); and generation settings such as beams, contrastive search, `max_time`,
    `stop_strings`, `use_cache=False` or a static cache.

    Args:
        trainer: A `GRPOTrainer`, or one derived from it.
        wanted: None: where it is known to be faster, which is on the CPU. True: on every device.
            False: nowhere.

    Returns:
        The function, or None. Why it is None is logged as a warning on the main process, unless it
        is not wanted: the reason, and what to do where something can be done.
    """
    on_cpu = trainer.accelerator.device.type == "cpu"
    if wanted is False or (wanted is None and not on_cpu):
        return None
    other = generated_by_other(trainer)
    if other is not None and wanted is None:
        return None  # the user has chosen another way, and knows
    reason = other or not_covered(trainer)
    if reason is None:
        return rollouts
    if trainer.accelerator.is_main_process:
        logger.warning("fast_generation is off, and TRL generates: %s", reason)
    return None


def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Complete a generation batch, in which a prompt stands once for each of its completions.

    Args:
        prompts: Texts, or conversations.
        trainer: One that `fast_rollouts` covers.

    Returns:
        `prompt_ids` and `completion_ids`, a list of ids for each of the prompts in their order, and
        `logprobs`, None: the trainer makes its own.
    """
    prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": complete(prompt_ids, trainer),
        "logprobs": None,
    }


def complete(prompt_ids: Sequence[Sequence[int]], trainer: Any) -> list[list[int]]:
    """The completion of each prompt, up to and with the id that ends it.

    Args:
        prompt_ids: Prompts of this process. Those that are equal are read once.
        trainer: Its model, generation configuration and padding are used as in TRL's own
            generation, on the unwrapped model and with gradient checkpointing off.
    """
    places = {ids: i for i, ids in enumerate(dict.fromkeys(map(tuple, prompt_ids)))}
    device = trainer.accelerator.device
    prompts = [torch.tensor(ids) for ids in places]
    input_ids = _left_padded(prompts, trainer._tokenizer.pad_token_id, trainer)
    attention_mask = _left_padded([torch.ones_like(ids) for ids in prompts], 0, trainer)
    with (
        profiling_context(trainer, "transformers.generate"),
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
    ):
        sequences = model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=trainer.generation_config,
            custom_generate=sample_rows,
            prompt_of_row=torch.tensor([places[tuple(ids)] for ids in prompt_ids], device=device),
        )
    completions = sequences[:, input_ids.shape[1] :]
    return [_until_end(ids, set(trainer.eos_token_ids)) for ids in completions.tolist()]


def _left_padded(rows: list[torch.Tensor], value: int, trainer: Any) -> torch.Tensor:
    return pad(
        rows,
        padding_value=value,
        padding_side="left",
        pad_to_multiple_of=trainer.pad_to_multiple_of,
    )


def _until_end(ids: list[int], ends: set[int]) -> list[int]:
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)
