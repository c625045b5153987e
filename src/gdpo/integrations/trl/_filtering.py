"""Implements dynamic sampling, which replaces groups without signal with groups of new prompts.

With `any_reward_varies`, a group has no signal if no reward with a nonzero weight varies within it:
the weighted sum can be constant although rewards vary. With an estimator for turns, a reward also
varies if only its values at a turn do.

TRL generates and scores the additional groups in at most `max_filter_rounds` rounds
(docs/how-to/faster_training.md). Their prompts are drawn from the training data with a seed that
combines the run's seed and progress, so that a resumed run draws the same prompts. Each rank
replaces its own groups. All ranks generate as many groups as the rank with the most to replace.

TRL's reward and completion metrics describe the first generation. `GDPOTrainer`'s group, advantage
and diagnosis metrics describe the groups that are trained on. The rollout record contains all
rollouts, with the advantage 0 for those that are not trained on.
"""

import copy
from typing import Any

import numpy as np
from datasets import IterableDataset

from gdpo.diagnostics import zero_variance_groups
from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import is_training
from gdpo.integrations.trl._groups import (
    Groups,
    Ranks,
    assemble,
    further_rows,
    replace_without_signal,
)
from gdpo.integrations.trl._packing import loss_mask


class GroupFilter:
    def __init__(self, trainer: Any, ranks: Ranks) -> None:
        self._trainer, self._ranks = trainer, ranks
        self._wanted: str = trainer.args.filter_groups
        if self._wanted != "off" and (reason := _unfilterable_because(trainer)):
            raise ConfigError(f"filter_groups={self._wanted!r} is not supported: {reason}")

    def generated(self, inputs: Any) -> list[Groups]:
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

    def trained(self, generated: list[Groups]) -> Groups:
        """Return the groups to train on. Every process must call this method."""
        if len(generated) == 1:
            return generated[0]
        groups = assemble(generated, self._ranks, self._trainer._tokenizer.pad_token_id)
        tokens = self._trainer.accelerator.gather(loss_mask(groups.output).sum())
        groups.output["num_items_in_batch"] = tokens.sum()
        return groups

    def _have_signal(self, groups: Groups) -> list[bool]:
        trainer = self._trainer
        if self._wanted == "advantage_nonzero":
            return (trainer._advantages_of(groups) != 0).flatten(1).any(1).tolist()
        own, turns = groups.weights, groups.turns
        rewards = groups.rewards[:, :, None]
        if trainer._objective.rule.wants_turns and turns is not None:
            rewards = turns.rewards
        vary: list[bool] = []
        for prompt, group in enumerate(rewards.cpu()):
            constant = zero_variance_groups(group.flatten(1)[None]).reshape(group.shape[1:])
            weights = np.asarray(trainer.reward_weights.tolist() if own is None else own[prompt])
            vary.append(bool(((constant == 0).any(0) & (weights != 0)).any()))
        return vary

    def _generate_more(self, count: int) -> Groups:
        """Generate groups on every rank without changing TRL's metrics."""
        trainer, state = self._trainer, self._trainer.state
        # The number of input tokens differs between the generations of a step, and is the same in
        # a resumed run.
        seed = (trainer.args.seed, state.global_step, int(state.num_input_tokens_seen))
        drawn = further_rows(trainer.train_dataset, count * self._ranks.count, seed)
        rows = self._ranks.own(drawn)
        logged = copy.deepcopy((trainer._metrics["train"], trainer._logs))
        groups = trainer._generate_groups(
            [dict(row) for row in rows for _ in range(trainer.num_generations)]
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
