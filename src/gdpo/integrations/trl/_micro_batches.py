"""Micro-batches as TRL's loss takes them: joined, regrouped by length, and trimmed. No trainer."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

MicroBatch = dict[str, Any]
"""Tensors with a row per rollout, by TRL's names, and a number for the whole batch."""

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
_OF_THE_BATCH = ("num_items_in_batch",)

_FILLED_WITH = {"tool_mask": 1, "importance_sampling_ratio": 1}
"""What TRL puts where there is no token, if not 0."""


@dataclass(frozen=True)
class Row:
    """A rollout, as packing sees it.

    Args:
        prompt: Its prompt's tokens.
        completion: Tokens of its completion, up to the last one that counts.
        counted: Tokens that the loss counts.
        contributes: Whether anything of the loss depends on it.
    """

    prompt: int
    completion: int
    counted: int
    contributes: bool


def unknown_to_packing(batch: MicroBatch) -> list[str]:
    """What it holds that the functions here do not know how to cut."""
    return sorted(set(batch) - {*_PROMPT, *_COMPLETION, *_OF_THE_BATCH})


def join(batches: Sequence[MicroBatch]) -> MicroBatch:
    """One micro-batch of several that were cut from the same generation batch."""
    return {
        key: value if key in _OF_THE_BATCH else torch.cat([batch[key] for batch in batches])
        for key, value in batches[0].items()
        if value is not None
    }


def loss_mask(batch: MicroBatch) -> torch.Tensor:
    """`[row, token]`: 1 for completion tokens that the model wrote."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def rows_of(batch: MicroBatch, *, zero_contributes: bool) -> list[Row]:
    """What packing asks of every rollout, fetched from the device at once.

    Args:
        batch: TRL's.
        zero_contributes: Whether a rollout does whose advantage is 0.
    """
    mask = loss_mask(batch)
    counted = mask.sum(1)
    contributes = torch.ones_like(counted, dtype=torch.bool)
    if not zero_contributes:
        contributes = (batch["advantages"].view(len(mask), -1) != 0).any(1) & (counted > 0)
    facts = torch.stack([batch["prompt_mask"].sum(1), last_places(mask), counted, contributes], 1)
    return [Row(prompt, length, n, bool(c)) for prompt, length, n, c in facts.tolist()]


def last_places(mask: torch.Tensor) -> torch.Tensor:
    """`[row, token] -> [row]`: how many tokens there are up to the last one in the mask."""
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return ((mask != 0) * places).amax(1)


def split(rows: Sequence[Row], count: int, parts: int) -> list[list[int]]:
    """Places of the rows to train, evenly in micro-batches of like length, the longest first.

    Rows that contribute come before those that do not, among which the shortest fill up.

    Args:
        rows: Of one optimizer step.
        count: How many to train, at least one per part.
        parts: How many micro-batches.
    """
    wanted = sorted(range(len(rows)), key=lambda i: (not rows[i].contributes, rows[i].completion))[
        :count
    ]
    by_length = sorted(wanted, key=lambda i: rows[i].completion, reverse=True)
    size, more = divmod(count, parts)
    # The short ones take what does not divide, so that no micro-batch outgrows TRL's.
    sizes = [size + (i >= parts - more) for i in range(parts)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [by_length[start:end] for start, end in itertools.pairwise(ends)]


def chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """The items in lists of a size, the last one with what is left."""
    return (list(items[i : i + size]) for i in range(0, len(items), size))


def take(
    batch: MicroBatch,
    places: Sequence[int],
    *,
    prompt: int | None = None,
    completion: int | None = None,
) -> MicroBatch:
    """Some rows of it.

    Args:
        batch: With all rows.
        places: Which rows.
        prompt: Tokens to leave of prompts, on the right. None: all.
        completion: Tokens to leave of completions, on the left. None: all.
    """
    index = torch.tensor(places, device=batch["completion_ids"].device)
    taken: MicroBatch = {}
    for key, value in batch.items():
        if key in _OF_THE_BATCH:
            taken[key] = value
        elif key in _PROMPT and prompt is not None:
            taken[key] = value[:, value.shape[1] - prompt :][index]
        else:
            taken[key] = (value if value.ndim == 1 else value[:, :completion])[index]
    return taken


def widened(batches: Sequence[MicroBatch], padding: int) -> list[MicroBatch]:
    """All of them padded as TRL pads, to the longest prompt and the longest completion.

    Args:
        batches: Cut from different generation batches.
        padding: The tokenizer's padding token.
    """
    filled = {**_FILLED_WITH, "prompt_ids": padding, "completion_ids": padding}
    widths = {
        key: max(batch[key].shape[1] for batch in batches)
        for key, value in batches[0].items()
        if value.ndim == 2
    }
    return [
        {
            key: _pad(value, widths[key], filled.get(key, 0), on_left=key in _PROMPT)
            if key in widths
            else value
            for key, value in batch.items()
        }
        for batch in batches
    ]


def _pad(value: torch.Tensor, width: int, filler: int, *, on_left: bool) -> torch.Tensor:
    missing = width - value.shape[1]
    return pad(value, (missing, 0) if on_left else (0, missing), value=filler)
