"""Computes the prompt of a group once, not once for each rollout.

`SharedPrompts` lets the decoder read all but the last token of each distinct prompt into a cache.
The model then continues it with the last prompt token and the completion of each row, in calls of
completions with similar lengths. Neither the model nor the head is changed.
"""

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import pad

from gdpo.integrations.trl._adapter import tried, without_adapter
from gdpo.integrations.trl._plan import CallCost, RolloutTokens, call_of, planned
from gdpo.integrations.trl._probe import Score, SpeedUp
from gdpo.integrations.trl.generation import kind_not_covered


def last_places(mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return ((mask != 0) * places).amax(1)


def distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct prompts, with -1 for padding, and which of them each row has."""
    return ids.where(mask != 0, -1).unique(dim=0, return_inverse=True)


class SharedPrompts(SpeedUp):
    instead = "share_prompts: each rollout computes its own prompt"

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        model = trainer.model
        layers = getattr(model.config.get_text_config(), "num_hidden_layers", 1)
        parameters = max(1, sum(each.numel() for each in model.parameters()))
        self._call = call_of(trainer.accelerator.device.type, layers, parameters)

    @property
    def call(self) -> CallCost | None:
        """What a call of the model costs. None: prompts are not shared."""
        return None if self.is_off else CallCost() if self.is_tried else self._call

    def score(
        self,
        score: Score,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **options: Any,
    ) -> Any:
        if self.is_off:
            return score(model, input_ids, attention_mask, logits_to_keep, **options)
        start = input_ids.shape[1] - logits_to_keep
        prompts, group_of_row = distinct(input_ids[:, :start], attention_mask[:, :start])
        facts = torch.stack([group_of_row, last_places(attention_mask[:, start:])], 1).tolist()
        rows = [
            RolloutTokens(prompt=start, completion=length, group=group) for group, length in facts
        ]
        plan = planned(rows, self.call)
        if not plan.shared:
            self.say("sharing saves nothing in some micro-batches")
            return score(model, input_ids, attention_mask, logits_to_keep, **options)
        unwrapped = self._trainer.accelerator.unwrap_model(model)
        cache = self._read(unwrapped, prompts[:, :-1])
        # DistributedDataParallel expects one call before each backward pass.
        models = itertools.chain([model], itertools.repeat(unwrapped))
        parts: list[Any] = []
        for chunk in plan.chunks:
            here = torch.tensor(chunk, device=input_ids.device)
            width = max(1, *(rows[i].completion for i in chunk))
            mask = attention_mask[here, : start + width]
            ids = input_ids[here, start - 1 : start + width]
            with _continuing(unwrapped, cache, group_of_row[here], mask):
                scores = score(next(models), ids, mask[:, start - 1 :], width, **options)
            beyond = (0, logits_to_keep - width)
            parts.append([None if x is None else pad(x, beyond) for x in scores[:2]])
        order = torch.tensor([i for chunk in plan.chunks for i in chunk]).argsort()
        logps, entropies = (
            None if of_chunks[0] is None else torch.cat(of_chunks)[order.to(input_ids.device)]
            for of_chunks in zip(*parts, strict=True)
        )
        return logps, entropies, None

    def _read(self, unwrapped: Any, prompts: torch.Tensor) -> Any:
        """Return the cache of prompts, in which padding is -1."""
        from gdpo.integrations.trl import _caches

        decoder = without_adapter(unwrapped).get_decoder()
        cache = _caches.Cache(layer_class_to_replicate=_caches.PromptLayer)
        options = {_caches.cache_argument(decoder): cache, "use_cache": False}
        with self._trainer.accelerator.autocast(), _caches.caches_in_checkpoints(unwrapped):
            decoder(input_ids=prompts.clamp(min=0), attention_mask=(prompts >= 0).long(), **options)
        return cache


@contextmanager
def _continuing(
    unwrapped: Any, prompts: Any, rows: torch.Tensor, mask: torch.Tensor
) -> Generator[None]:
    """Let a model continue prompts in a cache, whoever calls it.

    `rows` holds the prompt of each row. `mask` covers the whole prompts and the completions.
    """
    from gdpo.integrations.trl._caches import cache_argument, caches_in_checkpoints, continued

    argument = cache_argument(without_adapter(unwrapped).get_decoder())
    more = {"attention_mask": mask, argument: continued(prompts, rows)}

    def hook(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, **more}

    handle = unwrapped.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        with caches_in_checkpoints(unwrapped):
            yield
    finally:
        handle.remove()


def shared_prompts_of(trainer: Any) -> SharedPrompts:
    """Return the `SharedPrompts` of a trainer, which is off if it is impossible or not wanted.

    If it is impossible, the main process logs the reason.
    """
    shared = SharedPrompts(trainer)
    shared.is_off = not trainer.args.share_prompts
    if not shared.is_off and (reason := tried(lambda: not_shared_because(trainer))):
        shared.say(reason)
        shared.is_off = True
    return shared


def not_shared_because(trainer: Any) -> str | None:
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "the model is sharded"
    if trainer.aux_loss_enabled:
        return "the expert load is balanced over the tokens of each rollout"
    if (trainer.pad_to_multiple_of or 1) > 1:
        return "pad_to_multiple_of is set"
    return kind_not_covered(without_adapter(trainer.model))
