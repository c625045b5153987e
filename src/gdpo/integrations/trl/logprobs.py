"""Computes log-probabilities on a CPU only from the logits of completion tokens.

TRL's head, written for GPUs, also scores prompts, recomputes the logits in the backward pass, and
multiplies in float32. `CompletionOnlyHead` keeps the logits of completion tokens until the backward
pass, which overwrites them with their gradient. On other devices, and where `not_here_because`
returns a reason, TRL's own head is used.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import TrainerCallback

from gdpo.integrations.trl._adapter import computed_in, lacks, without_adapter
from gdpo.integrations.trl._probe import Score, SpeedUp

KERNELS = 64
"""Capacity of each kernel cache. A micro-batch uses about 20 kernels; decoding steps use more.

The time per step was the same with 16, 64, 128 and 1,024 kernels.
"""


_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables that set the capacity of the kernel caches of oneDNN and ideep.

A kernel is freed when neither cache contains it.
"""


def bound_memory(trainer: Any) -> None:
    """Keep the resident memory of bfloat16 training on a CPU constant over the steps.

    Call this after the model is loaded and before anything is computed: the libraries read their
    cache sizes when they compile the first kernel. Sizes set by the user are kept.
    """
    if trainer.accelerator.device.type != "cpu" or computed_in(trainer) != torch.bfloat16:
        return
    bound_kernels()
    try:
        trainer.add_callback(_GiveBack(ctypes.CDLL(None).malloc_trim))  # glibc's
    except (AttributeError, OSError, TypeError):  # musl, no symbols, or Windows
        return


def bound_kernels() -> None:
    """Reduce the capacity of the kernel caches."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(KERNELS))


class _GiveBack(TrainerCallback):
    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim = trim

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trim(0)


_BLOCK = 2**21
"""Number of logits to process at a time, chosen to fit in the CPU's cache."""

_TRL_TOKENS, _TRL_VOCABULARY = 4096, 32768
"""Block size of TRL's head, in tokens and in vocabulary entries."""

_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap", "softcap")
"""Configuration fields that cap a model's logits. TRL's head supports some of these fields."""

_TRL_BLOCKS = 4
"""Minimum number of blocks that TRL's head keeps in memory."""


def head_of(trainer: Any) -> "CompletionOnlyHead | None":
    """Return the head for a trainer, or None if TRL's is used and there is nothing to report."""
    head = CompletionOnlyHead(trainer)
    if reason := lacks("completion_only_head"):
        head.say(reason)
        return None
    if not trainer.args.completion_only_head or trainer.accelerator.device.type != "cpu":
        return None
    return head


class CompletionOnlyHead(SpeedUp):
    """Scores completions instead of TRL's `_get_per_token_logps_and_entropies`."""

    instead = "completion_only_head: TRL's head is used"

    def score(self, score: Score, model: Any, *rows: Any, **options: Any) -> Any:
        """Return what TRL's method returns for these arguments."""
        input_ids, _, keep = rows
        if reason := self.not_here_because(model, len(input_ids) * keep, options):
            self.say(reason)
        if reason or self.is_off:
            return score(model, *rows, **options)
        logps, entropies = self._score(model, *rows)
        return logps, entropies if options.get("compute_entropy") else None, None

    def _score(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before_each = torch.arange(-keep - 1, -1)
        with self._trainer.accelerator.autocast():
            output = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                logits_to_keep=before_each,
                use_cache=False,
            )
        logps, entropies = _TokenScores.apply(
            output.logits.contiguous(), input_ids[:, -keep:], self._trainer.temperature
        )
        padding = attention_mask[:, -keep:] == 0
        return logps.masked_fill(padding, 0), entropies.masked_fill(padding, 0)

    def not_here_because(self, model: Any, tokens: int, options: dict[str, Any]) -> str | None:
        """Return why TRL's head scores a number of completion tokens, or None."""
        trainer = self._trainer
        others = {k: v for k, v in options.items() if k != "compute_entropy"}
        if any(value is not None and value is not False for value in others.values()):
            return "the batch is multimodal, or the expert load is balanced"
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            return "the model is sharded"
        if trainer.args.cast_lm_head_to_fp32:
            return "cast_lm_head_to_fp32 is set"
        base: Any = without_adapter(trainer.accelerator.unwrap_model(model))
        text = base.config.get_text_config()
        if cap := next((name for name in _CAPS if getattr(text, name, None) is not None), None):
            return f"the model caps its logits ({cap})"
        trls = _TRL_TOKENS * min(text.vocab_size, _TRL_VOCABULARY)
        if tokens * text.vocab_size > _TRL_BLOCKS * trls:
            return "the logits of a micro-batch would need more memory than TRL's buffers"
        return None


class _TokenScores(torch.autograd.Function):
    r"""Computes the log-probability of each target, and the entropy of the distribution.

    Let $z$ be the logits, $T$ the temperature, $p = \mathrm{softmax}(z / T)$, $H$ the entropy of
    $p$, and $g$ and $h$ the incoming gradients of the log-probability and of the entropy. Then

    $$ \partial z = \frac{1}{T} \bigl(g (1_{target} - p) - h\, p (\log p + H)\bigr). $$

    The gradient overwrites the logits, so a second backward pass is not possible.
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
        ctx.set_materialize_grads(False)  # the entropy is often only logged
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
