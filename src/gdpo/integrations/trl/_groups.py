"""Stores groups of rollouts, and replaces those without signal (dynamic sampling).

With `any_reward_varies`, a group has no signal if no reward with a nonzero weight varies within it:
the weighted sum can be constant although rewards vary. With an estimator for turns, a reward also
varies if only its values at a turn do.

TRL generates and scores the additional groups in at most `max_filter_rounds` rounds
(docs/how-to/faster_training.md). The seed for their prompts combines the run's seed and progress,
so that a resumed run draws the same ones. Each rank replaces its own groups, and all generate as
many as the rank with the most to replace.

TRL's reward and completion metrics describe the first generation, and `GDPOTrainer`'s the groups
that are trained on. The rollout record contains all rollouts, with the advantage 0 for those that
are not trained on.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset

from gdpo.diagnostics import zero_variance_groups
from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import is_training
from gdpo.integrations.trl._packing import MicroBatch, join, loss_mask, take
from gdpo.integrations.trl._turns import TurnRewards, joined


@dataclass
class GeneratedGroups:
    """Stores groups generated and scored together, on all ranks.

    `rewards` are gated, `[prompt, sample, reward]`: the totals, if there are turns. `weights` are
    `[prompt, reward]`, or None for the configured ones. `rollouts` are this process's arguments for
    `RolloutLog.collect`, and empty for a batch assembled from several generations. `places` holds
    the position of each group in the training batch: None if it is not trained on.
    """

    rewards: torch.Tensor
    token_counts: torch.Tensor | None
    closed_gates: Mapping[str, float]
    rollouts: Mapping[str, Any]
    weights: torch.Tensor | None = None
    turns: TurnRewards | None = None
    output: MicroBatch = field(default_factory=dict)
    places: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = list(range(len(self.rewards)))

    @property
    def by_turn(self) -> TurnRewards:
        """The turns of all rollouts. A rollout without turns has one turn."""
        ones = torch.ones(self.rewards.shape[:2], dtype=torch.int64)
        return self.turns or TurnRewards(self.rewards[:, :, None], ones)

    def their_own(self, advantages: torch.Tensor) -> torch.Tensor:
        if advantages.ndim == 3:  # as many turns as these groups have
            missing = self.by_turn.rewards.shape[2] - advantages.shape[2]
            advantages = torch.nn.functional.pad(advantages, (0, missing))
        own = torch.zeros(len(self.places), *advantages.shape[1:], dtype=advantages.dtype)
        for group, place in enumerate(self.places):
            if place is not None:
                own[group] = advantages[place]
        return own


@dataclass(frozen=True)
class Ranks:
    count: int
    this: int

    def own(self, items: Any) -> Any:
        """Return this process's part of a sequence or tensor of all processes."""
        size = len(items) // self.count
        return items[self.this * size : (self.this + 1) * size]


def replace_without_signal(
    first: GeneratedGroups,
    *,
    more: Callable[[int], GeneratedGroups],
    have_signal: Callable[[GeneratedGroups], list[bool]],
    ranks: Ranks,
    rounds: int,
) -> list[GeneratedGroups]:
    """Generate groups until every group without signal is replaced, or no rounds are left.

    `more` generates the given number of groups on every rank. `have_signal` returns the same on
    every rank.
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


def assemble(generated: Sequence[GeneratedGroups], ranks: Ranks, padding: int) -> GeneratedGroups:
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

    def stacked(parts: Sequence[Any]) -> Any:
        return None if parts[0] is None else torch.stack([parts[i][g] for i, g in sources])

    outputs = [groups.output for groups in generated]
    starts = np.cumsum([0, *(len(output["completion_ids"]) for output in outputs)]).tolist()
    samples = generated[0].rewards.shape[1]
    rows: list[int] = []
    for i, group in ranks.own(sources):
        before = ranks.this * len(generated[i].places) // ranks.count
        start = starts[i] + (group - before) * samples
        rows += range(start, start + samples)
    return GeneratedGroups(
        rewards=stacked([groups.rewards for groups in generated]),
        token_counts=stacked([groups.token_counts for groups in generated]),
        closed_gates=generated[0].closed_gates,
        rollouts={},
        weights=stacked([groups.weights for groups in generated]),
        turns=joined([groups.turns for groups in generated], sources),
        output=take(join(outputs, padding=padding), rows),
    )


def further_rows(dataset: Any, count: int, seed: Sequence[int]) -> list[dict[str, Any]]:
    """Return random rows of a dataset, without replacement unless the dataset is too small."""
    length = len(dataset)
    places = np.random.default_rng(seed).choice(length, count, replace=count > length)
    return [dict(dataset[int(place)]) for place in places]


class GroupFilter:
    def __init__(self, trainer: Any, ranks: Ranks) -> None:
        self._trainer, self._ranks = trainer, ranks
        self._wanted: str = trainer.args.filter_groups
        if self._wanted != "off" and (reason := _unfilterable_because(trainer)):
            raise ConfigError(f"filter_groups={self._wanted!r} is not supported: {reason}")

    def generated(self, inputs: Any) -> list[GeneratedGroups]:
        trainer = self._trainer
        first = trainer._generate_groups(inputs)
        if self._wanted == "off" or not is_training(trainer):
            return [first]
        generated = replace_without_signal(
            first,
            more=self._generate_more,
            have_signal=self._have_signal,
            ranks=self._ranks,
            rounds=trainer.args.max_filter_rounds,
        )
        metrics, size = trainer._metrics["train"], len(first.places)
        metrics["filter/rounds"].append(len(generated) - 1)
        metrics["filter/replaced"].append(first.places.count(None) / size)
        metrics["filter/generated"].append(sum(len(g.places) for g in generated) / size)
        return generated

    def trained(self, generated: list[GeneratedGroups]) -> GeneratedGroups:
        """Return the groups to train on. Every process must call this method."""
        if len(generated) == 1:
            return generated[0]
        groups = assemble(generated, self._ranks, self._trainer._tokenizer.pad_token_id)
        tokens = self._trainer.accelerator.gather(loss_mask(groups.output).sum())
        groups.output["num_items_in_batch"] = tokens.sum()
        return groups

    def _have_signal(self, groups: GeneratedGroups) -> list[bool]:
        trainer = self._trainer
        if self._wanted == "advantage_nonzero":
            return (trainer._advantages_of(groups) != 0).flatten(1).any(1).tolist()
        own, rewards = groups.weights, groups.rewards[:, :, None]
        if trainer._objective.rule.wants_turns:
            rewards = groups.by_turn.rewards
        vary: list[bool] = []
        for prompt, group in enumerate(rewards.cpu()):
            constant = zero_variance_groups(group.flatten(1)[None]).reshape(group.shape[1:])
            weights = np.asarray(trainer.reward_weights.tolist() if own is None else own[prompt])
            vary.append(bool(((constant == 0).any(0) & (weights != 0)).any()))
        return vary

    def _generate_more(self, count: int) -> GeneratedGroups:
        """Generate groups on every rank without changing TRL's metrics."""
        trainer, state = self._trainer, self._trainer.state
        # The number of input tokens differs between the generations of a step, and is the same in
        # a resumed run.
        seed = (trainer.args.seed, state.global_step, int(state.num_input_tokens_seen))
        drawn = further_rows(trainer.train_dataset, count * self._ranks.count, seed)
        logged = copy.deepcopy((trainer._metrics["train"], trainer._logs))
        groups = trainer._generate_groups(
            [dict(row) for row in self._ranks.own(drawn) for _ in range(trainer.num_generations)]
        )
        trainer._metrics["train"], trainer._logs = logged
        trainer._metrics["train"]["num_tokens"] = [state.num_input_tokens_seen]
        return groups


def _unfilterable_because(trainer: Any) -> str | None:
    if isinstance(trainer.train_dataset, IterableDataset):
        return (
            "prompts are drawn by row number, but train_dataset is an IterableDataset. Use a "
            "Dataset, or set filter_groups='off'"
        )
    if trainer._is_vlm:
        return (
            "the model reads images, and a batch of images cannot be put together from several "
            "generations, because their tensors have rows per image, not per rollout. Set "
            "filter_groups='off'"
        )
    config, samples = trainer.args, trainer.num_generations
    if config.per_device_train_batch_size * config.steps_per_generation % samples:
        return (
            "a group is split over two processes. Make per_device_train_batch_size × "
            f"steps_per_generation a multiple of num_generations ({samples})"
        )
    return None
