"""Log-probabilities on a CPU from the logits of completions alone.

TRL's head is written for GPUs. Elsewhere it scores prompts, too, computes logits again in the
backward pass, and multiplies in float32 whatever the model's type is. `CompletionOnlyHead` asks the
model for the logits of completion tokens and keeps them until the backward pass, which turns them
into their own gradient in place.

TRL's own head is used on other devices, and, which the log says once, for multimodal batches, the
load-balancing loss of experts, `cast_lm_head_to_fp32`, capped logits, heads that are more than a
product, models whose forward cannot leave out positions (`logits_to_keep`), under DeepSpeed and
FSDP, and for a batch whose logits would take more memory than TRL's own buffers.
"""

import ctypes
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import is_peft_model
from torch import nn
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

KERNELS = 64
"""Kernels that each cache keeps: those of a micro-batch (about 20) and of the last decoding steps.

With 16, 64, 128 and 1,024 a step took the same time.
"""


_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN's cache and of ideep's. Kernels are freed when neither holds them any more."""


def bound_memory(trainer: Any) -> None:
    """Let the resident memory of a training in bfloat16 on a CPU stay as it is, step by step.

    Args:
        trainer: Has its model, and has computed nothing yet: the libraries read the sizes of their
            caches when they compile the first kernel. Sizes that the user has set stay.
    """
    if trainer.accelerator.device.type != "cpu" or not _in_bfloat16(trainer):
        return
    bound_kernels()
    if trim := _malloc_trim():
        trainer.add_callback(_GiveBack(trim))


def bound_kernels() -> None:
    """Let the caches hold few kernels. Sizes that the user has set stay."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(KERNELS))


def _in_bfloat16(trainer: Any) -> bool:
    mixed = trainer.accelerator.mixed_precision == "bf16"
    return mixed or trainer.model.dtype == torch.bfloat16


def _malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc that gives freed memory back; None where there is another library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, or no symbols, or Windows
        return None


class _GiveBack(TrainerCallback):
    """Gives freed memory back to the system after every step."""

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim = trim

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._trim(0)


logger = logging.getLogger(__name__)

_BLOCK = 2**21
"""Logits that are worked on at once: few enough to stay in a processor's cache."""

_TRL_TOKENS, _TRL_VOCABULARY = 4096, 32768
"""Size of the blocks that TRL's head computes."""

_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap", "softcap")
"""What models call a bound on their logits, which TRL's head knows in part."""

_TRL_BLOCKS = 4
"""As many of them are alive at once in TRL's head, at least."""


class CompletionOnlyHead(GRPOTrainer):
    """TRL's GRPO, with a head for CPUs where its configuration says `completion_only_head`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._said_of_head: set[str] = set()

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        config: Any = self.args
        trl = functools.partial(super()._get_per_token_logps_and_entropies, model)
        if not config.completion_only_head or input_ids.device.type != "cpu":
            return trl(input_ids, attention_mask, logits_to_keep, batch_size, **options)
        size = batch_size or len(input_ids)
        shape = (min(size, len(input_ids)), input_ids.shape[1], logits_to_keep)
        if reason := self._not_here_because(model, shape, options):
            self._say(reason)
            return trl(input_ids, attention_mask, logits_to_keep, batch_size, **options)
        parts = [
            self._score(model, ids, mask, logits_to_keep)
            for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True)
        ]
        logps, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
        return logps, entropies if options.get("compute_entropy") else None, None

    def _score(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before_each = torch.arange(-keep - 1, -1)
        with self.accelerator.autocast():
            output = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                logits_to_keep=before_each,
                use_cache=False,
            )
        logps, entropies = _TokenScores.apply(
            output.logits.contiguous(), input_ids[:, -keep:], self.temperature
        )
        padding = attention_mask[:, -keep:] == 0
        return logps.masked_fill(padding, 0), entropies.masked_fill(padding, 0)

    def _not_here_because(
        self, model: Any, shape: tuple[int, int, int], options: dict[str, Any]
    ) -> str | None:
        others = {k: v for k, v in options.items() if k != "compute_entropy"}
        if any(value is not None and value is not False for value in others.values()):
            return "the batch is multimodal, or experts' loads are balanced"
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return "the model is sharded"
        config: Any = self.args
        if config.cast_lm_head_to_fp32:
            return "cast_lm_head_to_fp32 is set"
        base: Any = self.accelerator.unwrap_model(model)
        base = base.get_base_model() if is_peft_model(base) else base
        text = base.config.get_text_config()
        if "logits_to_keep" not in inspect.signature(type(base).forward).parameters:
            return f"{type(base).__name__}.forward has no logits_to_keep"
        if cap := next((name for name in _CAPS if getattr(text, name, None) is not None), None):
            return f"the model caps its logits ({cap})"
        if not isinstance(base.get_output_embeddings(), nn.Linear):
            return f"the head of {type(base).__name__} is more than a product"
        rows, width, keep = shape
        trls = min(rows * width, _TRL_TOKENS) * min(text.vocab_size, _TRL_VOCABULARY)
        if rows * keep * text.vocab_size > _TRL_BLOCKS * trls:
            return "the logits of a micro-batch would take more memory than TRL's buffers"
        return None

    def _say(self, reason: str) -> None:
        if reason not in self._said_of_head and self.accelerator.is_main_process:
            logger.warning("completion_only_head: TRL's head is used, because %s", reason)
        self._said_of_head.add(reason)


class _TokenScores(torch.autograd.Function):
    r"""Log-probability of each target and entropy of its distribution, $z$ over the temperature.

    With $p = \mathrm{softmax}(z / T)$, $H$ its entropy, and the incoming gradients $g$ and $h$,

    $$ \partial z = \frac{1}{T} \bigl(g (1_{target} - p) - h\, p (\log p + H)\bigr). $$

    The gradient is written over the logits: a second backward pass is not possible.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logps = torch.empty(targets.shape, dtype=torch.float32)
        entropies = torch.empty(targets.shape, dtype=torch.float32)
        flat, wanted = logits.flatten(0, 1), targets.reshape(-1, 1)
        for block in _blocks(flat):
            log_p = (flat[block].float() / temperature).log_softmax(-1)
            logps.view(-1)[block] = log_p.gather(1, wanted[block])[:, 0]
            entropies.view(-1)[block] = -(log_p.exp().mul_(log_p)).sum(-1)
        ctx.save_for_backward(logits, targets, entropies)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # the entropy is often for the log only
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, targets, entropies = ctx.saved_tensors
        for_logps, for_entropies = (
            None if gradient is None else gradient.reshape(-1, 1) / ctx.temperature
            for gradient in gradients
        )
        out = logits.detach()
        flat, wanted = out.view(-1, out.shape[-1]), targets.reshape(-1, 1)
        for block in _blocks(flat):
            log_p = (flat[block].float() / ctx.temperature).log_softmax(-1)
            slopes = torch.zeros(len(log_p), 1) if for_logps is None else -for_logps[block]
            if for_entropies is not None:
                slopes = slopes - for_entropies[block] * (log_p + entropies.view(-1, 1)[block])
            grad = log_p.exp_().mul_(slopes)
            if for_logps is not None:
                grad.scatter_add_(1, wanted[block], for_logps[block])
            flat[block] = grad.to(flat)
        return out, None, None


def _blocks(flat: torch.Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK // flat.shape[1])
    return (slice(i, i + step) for i in range(0, len(flat), step))
