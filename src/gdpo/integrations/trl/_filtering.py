"""Implements dynamic sampling, which replaces groups without signal with groups of new prompts.

With `any_reward_varies`, a group has no signal if no reward with a nonzero weight varies within the
group. The weighted sum is not used for this test, because rewards can vary while their sum is
constant, and GDPO normalizes each reward before summing. With an estimator for turns, a reward also
varies if its values at a turn vary while its total is constant.

TRL generates and scores the additional groups in at most `max_filter_rounds` rounds. Groups that
still have no signal after the last round stay in the batch. The additional prompts are drawn at
random from the training data. The random seed combines the run's seed and progress, so that a
resumed run draws the same prompts. Each rank replaces its own groups. All ranks generate as many
groups as the rank with the most groups to replace. Surplus groups are not trained on.

TRL's reward and completion metrics describe the first generation, that is, the policy on the
unfiltered prompts. `GDPOTrainer`'s group, advantage and diagnosis metrics describe the groups that
are trained on. The rollout record contains all rollouts; rollouts that are not trained on have the
advantage 0. The trainer logs these additional metrics:

- `filter/rounds`: number of additional generation rounds.
- `filter/replaced`: share of the batch's groups that were replaced.
- `filter/generated`: groups generated per group trained on.
"""

import copy
from typing import Any

import torch
from datasets import IterableDataset
from trl.trainer.grpo_trainer import GRPOTrainer

from gdpo.errors import ConfigError
from gdpo.integrations.trl._groups import (
    Groups,
    Ranks,
    assemble,
    further_rows,
    replace_without_signal,
    which_vary,
)
from gdpo.integrations.trl._packing import loss_mask


class FilteredGroups(GRPOTrainer):
    """Extends TRL's GRPO trainer with `filter_groups`, which replaces groups without signal.

    Raises:
        ConfigError: If `filter_groups` is set for a streamed dataset, a multimodal model, or groups
            that are split over two processes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Any = self.args
        self._filter: str = config.filter_groups
        self._max_filter_rounds: int = config.max_filter_rounds
        self._ranks = Ranks(self.accelerator.num_processes, self.accelerator.process_index)
        if self._filter != "off" and (reason := self._unfilterable_because()):
            raise ConfigError(f"filter_groups={self._filter!r} is not supported: {reason}")

    def compute_advantages(
        self,
        rewards: torch.Tensor,
        token_counts: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        turns: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the advantages of a generation batch. `GDPOTrainer` documents the arguments."""
        raise NotImplementedError

    def _wants_turns(self) -> bool:
        """Return whether the estimator computes one advantage per turn."""
        raise NotImplementedError

    def _advantages_of(self, groups: Groups) -> torch.Tensor:
        """Return the advantages of these groups, `[prompt, sample]` or `[prompt, sample, turn]`."""
        # A subclass may override the method without the arguments `weights` and `turns`.
        own = {} if groups.weights is None else {"weights": groups.weights}
        if not self._wants_turns():
            return self.compute_advantages(groups.rewards, groups.token_counts, **own)
        assert groups.turns is not None, "the rewards of each turn are not known"
        own["turns"] = groups.turns.counts
        return self.compute_advantages(groups.turns.rewards, groups.token_counts, **own)

    def _generate_groups(self, inputs: Any) -> Groups:
        """Return the groups that TRL generates and scores for these rows."""
        raise NotImplementedError

    def _generate_with_signal(self, inputs: Any) -> list[Groups]:
        """Return the groups of these rows, followed by the groups of every additional round."""
        first = self._generate_groups(inputs)
        if self._filter == "off" or not (self.model and self.model.training):
            return [first]
        generated = replace_without_signal(
            first,
            more=self._generate_more,
            have_signal=self._have_signal,
            ranks=self._ranks,
            rounds=self._max_filter_rounds,
        )
        metrics, size = self._metrics["train"], len(first.places)
        metrics["filter/rounds"].append(len(generated) - 1)
        metrics["filter/replaced"].append(first.places.count(None) / size)
        metrics["filter/generated"].append(sum(len(g.places) for g in generated) / size)
        return generated

    def _trained(self, generated: list[Groups]) -> Groups:
        """Return the groups to train on. Every process must call this method."""
        if len(generated) == 1:
            return generated[0]
        tokenizer: Any = self._tokenizer
        groups = assemble(generated, self._ranks, tokenizer.pad_token_id)
        tokens: Any = self.accelerator.gather(loss_mask(groups.output).sum())
        groups.output["num_items_in_batch"] = tokens.sum()
        return groups

    def _have_signal(self, groups: Groups) -> list[bool]:
        if self._filter == "any_reward_varies":
            of_turns = self._wants_turns()
            return which_vary(groups, self.reward_weights.tolist(), of_turns=of_turns)
        advantages = self._advantages_of(groups)
        return (advantages != 0).flatten(1).any(1).tolist()

    def _generate_more(self, count: int) -> Groups:
        """Generate groups of new prompts on every rank, without changing TRL's metrics."""
        # The number of input tokens differs between the generations of a step, and is the same in
        # a resumed run.
        seed = (self.args.seed, self.state.global_step, int(self.state.num_input_tokens_seen))
        rows = self._ranks.own(further_rows(self.train_dataset, count * self._ranks.count, seed))
        logged = copy.deepcopy((self._metrics["train"], self._logs))
        samples: Any = self.num_generations
        groups = self._generate_groups([dict(row) for row in rows for _ in range(samples)])
        self._metrics["train"], self._logs = logged
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        return groups

    def _unfilterable_because(self) -> str | None:
        if isinstance(self.train_dataset, IterableDataset):
            return (
                "prompts are drawn by row number, but train_dataset is an IterableDataset. Use a "
                "Dataset, or set filter_groups='off'"
            )
        if self._is_vlm:
            return (
                "the model reads images, and a batch of images cannot be put together from several "
                "generations, because their tensors have rows per image, not per rollout. Set "
                "filter_groups='off'"
            )
        config: Any = self.args
        rows = config.per_device_train_batch_size * config.steps_per_generation
        if rows % self.num_generations:
            return (
                "a group is split over two processes. Make per_device_train_batch_size × "
                f"steps_per_generation a multiple of num_generations ({self.num_generations})"
            )
        return None
