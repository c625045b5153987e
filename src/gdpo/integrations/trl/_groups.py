from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gdpo.integrations.trl._packing import MicroBatch, join, take, widened
from gdpo.integrations.trl._turns import TurnRewards, joined


@dataclass
class Groups:
    """Stores groups that were generated and scored together, on all ranks.

    `rewards` are gated, `[prompt, sample, reward]`: the totals, if there are turns. `weights` are
    `[prompt, reward]`, or None for the configured ones. `rollouts` are this process's arguments for
    `RolloutLog.collect`, or None for a batch that was assembled from several generations. `places`
    holds the position of each group in the training batch: None if it is not trained on.
    """

    rewards: torch.Tensor
    token_counts: torch.Tensor | None
    closed_gates: Mapping[str, float]
    rollouts: Mapping[str, Any] | None
    weights: torch.Tensor | None = None
    turns: TurnRewards | None = None
    output: MicroBatch = field(default_factory=dict[str, Any])
    places: list[int | None] = field(default_factory=list[int | None])

    def __post_init__(self) -> None:
        self.places = list(range(len(self.rewards)))

    def their_own(self, advantages: torch.Tensor) -> torch.Tensor:
        shape = self.rewards.shape[:2]
        if advantages.ndim == 3 and self.turns is not None:
            shape = self.turns.taken.shape
            missing = shape[2] - advantages.shape[2]
            advantages = torch.nn.functional.pad(advantages, (0, missing))
        own = torch.zeros(shape, dtype=advantages.dtype)
        for group, place in enumerate(self.places):
            if place is not None:
                own[group] = advantages[place]
        return own


@dataclass(frozen=True)
class Ranks:
    count: int
    this: int

    def own(self, items: Sequence[Any]) -> Sequence[Any]:
        size = len(items) // self.count
        return items[self.this * size : (self.this + 1) * size]


def replace_without_signal(
    first: Groups,
    *,
    more: Callable[[int], Groups],
    have_signal: Callable[[Groups], list[bool]],
    ranks: Ranks,
    rounds: int,
) -> list[Groups]:
    """Generate groups until every group without signal is replaced, or no rounds are left.

    New groups replace groups of the same rank. `more` generates the given number of groups on every
    rank. `have_signal` returns the same on every rank.
    """
    generated = [first]
    size = len(first.places) // ranks.count
    to_replace = [place for place, has_signal in enumerate(have_signal(first)) if not has_signal]
    while to_replace and len(generated) <= rounds:
        of_rank = [
            [place for place in to_replace if place // size == rank] for rank in range(ranks.count)
        ]
        count = max(len(places) for places in of_rank)
        new = more(count)
        new.places = [None] * len(new.places)
        usable = have_signal(new)
        for rank, places in enumerate(of_rank):
            able = (group for group in range(rank * count, (rank + 1) * count) if usable[group])
            for place, group in zip(places, able, strict=False):
                first.places[place], new.places[group] = None, place
        generated.append(new)
        to_replace = [place for place in to_replace if first.places[place] is not None]
    return generated


def assemble(generated: Sequence[Groups], ranks: Ranks, padding: int) -> Groups:
    """Return the training batch, with every group at its position.

    `num_items_in_batch` is copied from the first generation: the caller must recompute it on all
    ranks.
    """
    placed = [
        (place, i, group)
        for i, groups in enumerate(generated)
        for group, place in enumerate(groups.places)
        if place is not None
    ]
    sources = [(i, group) for _, i, group in sorted(placed)]

    def stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        known = [part for part in parts if part is not None]
        return torch.stack([known[i][group] for i, group in sources]) if known else None

    outputs = widened([groups.output for groups in generated], padding)
    starts = np.cumsum([0, *(len(output["completion_ids"]) for output in outputs)]).tolist()
    samples = generated[0].rewards.shape[1]
    rows: list[int] = []
    for i, group in ranks.own(sources):
        before = ranks.this * len(generated[i].places) // ranks.count
        start = starts[i] + (group - before) * samples
        rows += range(start, start + samples)
    return Groups(
        rewards=torch.stack([generated[i].rewards[group] for i, group in sources]),
        token_counts=stacked([groups.token_counts for groups in generated]),
        closed_gates=generated[0].closed_gates,
        rollouts=None,
        weights=stacked([groups.weights for groups in generated]),
        turns=joined([groups.turns for groups in generated], sources),
        output=take(join(outputs), rows),
    )


def further_rows(dataset: Any, count: int, seed: Sequence[int]) -> list[dict[str, Any]]:
    """Return random rows of a dataset, without replacement unless the dataset is too small."""
    length = len(dataset)
    places = np.random.default_rng(seed).choice(length, count, replace=count > length)
    return [dict(dataset[int(place)]) for place in places]
