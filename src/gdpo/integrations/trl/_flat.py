"""Computes rollouts as one row of tokens: each prompt once, then its completions, no padding.

`FlatRows` lets the decoder read `[prompt 1, its completions, prompt 2, its completions, ...]`.
Each completion attends to its prompt and itself, and has the positions that it has in TRL's rows.
The head gets the hidden states from which completion tokens are predicted. Neither the model nor
the head is changed.

Attention puts the keys and values of a prompt before those of each of its completions with `cat`,
whose gradient is the same in every run. On a GPU, `varlen_attn` of torch computes all of them at
once.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import AttentionInterface

from gdpo.integrations.trl._adapter import GRPOTrainer, computed_in, tried, without_adapter
from gdpo.integrations.trl._probe import Score, SpeedUp
from gdpo.integrations.trl.generation import kind_not_covered

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None


def groups_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the group of each row: rows with the same prompt have the same number."""
    return ids.where(mask != 0, -1).unique(dim=0, return_inverse=True)[1]


@dataclass(frozen=True)
class FlatRow:
    """Stores the rollouts of some padded rows as one row of tokens, group by group."""

    ids: torch.Tensor
    positions: torch.Tensor
    """The columns of the tokens in the padded rows."""
    groups: list[list[int]]
    """Numbers of tokens of each prompt and its completions."""
    before: torch.Tensor
    """Which token precedes each completion token."""
    scored: torch.Tensor
    """Places of the completion tokens in the flattened `[row, completion token]`."""

    @cached_property
    def lengths(self) -> tuple[list[int], list[int]]:
        """Return the numbers of queries and of keys of each segment, prompts included."""
        queries = [n for group in self.groups for n in group]
        return queries, [
            n + (group[0] if i else 0) for group in self.groups for i, n in enumerate(group)
        ]

    @cached_property
    def ends(self) -> list[torch.Tensor]:
        """Return the ends of the segments among queries and among keys, after a 0."""
        ends = ([*accumulate(lengths, initial=0)] for lengths in self.lengths)
        return [torch.tensor(each, dtype=torch.int32, device=self.ids.device) for each in ends]

    def with_prompts(self, states: torch.Tensor) -> torch.Tensor:
        """Put the keys or values `[token, head, size]` of the prompts before each completion."""
        parts, found = iter(states.split(self.lengths[0])), list[torch.Tensor]()
        for group in self.groups:
            # The gradient of a prompt is one sum over its copies.
            first, *copies = next(parts).expand(len(group), -1, -1, -1).unbind()
            found += [first, *(each for copy in copies for each in (copy, next(parts)))]
        return torch.cat(found)


def flat_row_of(ids: torch.Tensor, mask: torch.Tensor, keep: int) -> FlatRow | None:
    """Return padded rows as one row. None: a mask has holes, or no completion has tokens."""
    start = ids.shape[1] - keep
    rows = mask[:, start:].any(1).nonzero()[:, 0]
    blocks = pad(mask[rows] != 0, (1, 1)).diff(dim=1).sum(1)
    if not len(rows) or not ((blocks == 2) & (mask[rows, start - 1] != 0)).all():
        return None
    group, order = groups_of(ids[rows, :start], mask[rows, :start]).sort(stable=True)
    rows = rows[order]
    is_first = pad(group.diff() != 0, (1, 0), value=True)
    kept = mask[rows] != 0
    kept[:, :start] &= is_first[:, None]
    scored = kept[:, start:]
    places = kept.flatten().cumsum(0).view_as(kept) - 1
    before = torch.cat([places[is_first, start - 1][group, None], places[:, start:-1]], 1)
    groups = list[list[int]]()
    for prompt, completion in torch.stack([kept[:, :start].sum(1), scored.sum(1)], 1).tolist():
        groups += [[prompt]] if prompt else []
        groups[-1].append(completion)
    columns = torch.arange(ids.shape[1], device=ids.device)
    return FlatRow(
        ids=ids[rows][kept],
        positions=columns.expand_as(kept)[kept],
        # A prompt with one completion is one segment.
        groups=[[sum(each)] if len(each) == 2 else each for each in groups],
        before=before[scored],
        scored=(rows[:, None] * keep + columns[:keep])[scored],
    )


class FlatRows(SpeedUp):
    """Scores rollouts as a `FlatRow`. Rows whose masks have holes are left to the code below it."""

    instead = "share_prompts: each rollout computes its own prompt"

    def score(self, score: Score, model: Any, *rows: Any, **options: Any) -> Any:
        row = None if self.is_off else flat_row_of(*rows)
        if row is None:
            return score(model, *rows, **options)
        input_ids, _, keep = rows
        targets = input_ids[:, -keep:].flatten()[row.scored]
        # The head predicts each id from the hidden state before it.
        ids = torch.cat([targets[:1], targets])[None]
        with _reading(without_adapter(self._trainer.accelerator.unwrap_model(model)), row):
            found = score(model, ids, torch.ones_like(ids), len(targets), **options)
        empty = torch.zeros(len(input_ids) * keep, device=ids.device)
        logps, entropies = (
            each
            if each is None
            else empty.to(each).index_copy(0, row.scored, each[0]).view(len(input_ids), -1)
            for each in found[:2]
        )
        return logps, entropies, None


@contextmanager
def _reading(model: Any, row: FlatRow) -> Generator[None]:
    """Let the decoder read a flat row, whoever calls the model with whatever ids."""

    def exchange(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(args) > 1 or kwargs.get("inputs_embeds") is not None:
            raise ValueError("the decoder reads more than ids")
        own = {"input_ids": row.ids[None], "position_ids": row.positions[None]}
        return (), {**kwargs, **own, "attention_mask": None}

    def select(_: Any, __: Any, output: Any) -> None:
        # The head does not use the last one.
        states = output.last_hidden_state
        output.last_hidden_state = states[:, pad(row.before, (0, 1))]

    decoder, attending = model.get_decoder(), partial(_attending, model.config, row)
    layers = [vars(e) for e in model.modules() if getattr(e, "gradient_checkpointing", False)]
    before = [(layer, layer[_CHECKPOINT]) for layer in layers]
    handles = [
        decoder.register_forward_pre_hook(exchange, with_kwargs=True),
        decoder.register_forward_hook(select),
    ]
    for layer, checkpoint in before:
        layer[_CHECKPOINT] = partial(_again, attending, checkpoint)
    try:
        with attending():
            yield
    finally:
        for layer, checkpoint in before:
            layer[_CHECKPOINT] = checkpoint
        for handle in handles:
            handle.remove()


_CHECKPOINT = "_gradient_checkpointing_func"
"""Attribute of transformers' layers."""


def _again(attending: Any, checkpoint: Any, forward: Callable[..., Any], *args: Any) -> Any:
    """Checkpoint a layer that attends in the same way when the backward pass calls it again."""
    return checkpoint(attending()(forward), *args)


_NAME = "gdpo_flat_row"
_read = list[FlatRow]()
"""The rows that are being read, the innermost last."""


@contextmanager
def _attending(config: Any, row: FlatRow) -> Generator[None]:
    before, config._attn_implementation = config._attn_implementation, _NAME
    _read.append(row)
    try:
        yield
    finally:
        _read.pop()
        config._attn_implementation = before


_NOT_COVERED = ("attention_mask", "sliding_window", "softcap", "s_aux", "sinks", "position_bias")

_REPLACED = ("eager", "sdpa", "flash_attention_2", "flash_attention_3")
"""Values of `attn_implementation` that all compute the same attention."""


def _attend(
    _: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention `[1, token, head, size]` of the row that is being read."""
    more["attention_mask"] = attention_mask
    if odd := [name for name in _NOT_COVERED if more.get(name) is not None]:
        raise ValueError(f"attention has {', '.join(odd)}")
    row = _read[-1]
    # Under autocast, rotary embeddings leave queries and keys in float32.
    queries, keys, values = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    of_row = _by_segment if query.device.type == "cpu" else _at_once
    states = queries, row.with_prompts(keys), row.with_prompts(values)
    found = of_row(row, states, scaling)
    return found[None], None


def _by_segment(row: FlatRow, states: Sequence[torch.Tensor], scale: float | None) -> torch.Tensor:
    found, (queries, keys) = list[torch.Tensor](), row.lengths
    for each in zip(*map(torch.split, states, (queries, keys, keys)), strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in each)
        mask = causal_lower_right(q.shape[2], k.shape[2])
        found.append(attend(q, k, v, mask, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(found)


def _at_once(row: FlatRow, states: Sequence[torch.Tensor], scale: float | None) -> torch.Tensor:
    at_once: Any = varlen_attn
    return at_once(
        *(*states, *row.ends, *map(max, row.lengths)),
        scale=scale,
        window_size=(-1, 0),  # causal, from the last key
        enable_gqa=states[0].shape[1] != states[1].shape[1],
    )


AttentionInterface.register(_NAME, _attend)  # transformers makes no mask for it


def flat_rows_of(trainer: Any) -> FlatRows:
    """Return the `FlatRows` of a trainer, which are off if they are impossible or not wanted.

    If they are impossible, the main process logs the reason.
    """
    flat = FlatRows(trainer)
    flat.is_off = not trainer.args.share_prompts
    if not flat.is_off and (reason := tried(lambda: _not_flat_because(trainer))):
        flat.say(reason)
        flat.is_off = True
    return flat


def _not_flat_because(trainer: Any) -> str | None:
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "the model is sharded"
    if trainer.aux_loss_enabled:
        return "the expert load is balanced over the tokens of each rollout"
    if (trainer.pad_to_multiple_of or 1) > 1:
        return "pad_to_multiple_of is set"
    if trainer.args.use_liger_kernel and getattr(GRPOTrainer, "compute_liger_loss", None):
        return "use_liger_kernel is set"
    device, halves = trainer.accelerator.device.type, (torch.bfloat16, torch.float16)
    if device != "cpu" and (varlen_attn is None or computed_in(trainer) not in halves):
        return "attention without padding needs bf16 or fp16, and torch 2.12"
    model = without_adapter(trainer.model)
    if (attention := model.config._attn_implementation) not in _REPLACED:
        return f"attn_implementation={attention!r} may compute something else"
    adapters = getattr(trainer.model, "peft_config", {}).values()
    if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters):
        return "the adapter looks for its invocation tokens in the ids"
    return kind_not_covered(model)
