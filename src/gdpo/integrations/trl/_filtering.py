"""Dynamic sampling: groups that teach nothing make way for groups of further prompts.

A group is dead only if every reward with a weight is, each looked at by itself: what is constant in
the weighted sum can still teach, since rewards are normalized before they are summed.

TRL generates and scores the further groups, in as many rounds as `max_filter_rounds` allows; dead
groups that are left then stay. Their prompts are drawn at random from the training data. The seed
is made of the run's own and of how far it is, so that a resumed run draws the same. Each rank
replaces its own groups, and all ranks generate as many as the one with the most zero-variance
groups. Spare groups with variance are not trained on.

What TRL logs of rewards and completions is that of the first generation: what the policy does on
the prompts as they come. What `GDPOTrainer` logs of groups, advantages and their diagnosis is that
of the groups that are trained. Rollout records hold everything that was generated; what is not
trained has an advantage of 0 there. Logged beside:

- `filter/rounds`: rounds of further generation;
- `filter/replaced`: share of the batch's groups that came from further prompts;
- `filter/generated`: groups generated for each one trained.
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
    """TRL's GRPO without zero-variance groups, where its configuration sets `filter_groups`.

    Raises:
        ConfigError: The data has no rows to draw from, or a multimodal model is trained.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Any = self.args
        self._filter: str = config.filter_groups
        self._max_filter_rounds: int = config.max_filter_rounds
        self._ranks = Ranks(self.accelerator.num_processes, self.accelerator.process_index)
        if self._filter != "off" and (reason := self._unfilterable_because()):
            raise ConfigError(f"filter_groups={self._filter!r} is not possible: {reason}")

    def compute_advantages(
        self, rewards: torch.Tensor, token_counts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[prompt, sample, reward] -> [prompt, sample]`."""
        raise NotImplementedError

    def _generate_groups(self, inputs: Any) -> Groups:
        """What TRL generates for these rows, scored."""
        raise NotImplementedError

    def _generate_with_signal(self, inputs: Any) -> list[Groups]:
        """The groups of these rows, then those of every further round."""
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
        """The groups that are trained. Every process must call it."""
        if len(generated) == 1:
            return generated[0]
        tokenizer: Any = self._tokenizer
        groups = assemble(generated, self._ranks, tokenizer.pad_token_id)
        tokens: Any = self.accelerator.gather(loss_mask(groups.output).sum())
        groups.output["num_items_in_batch"] = tokens.sum()
        return groups

    def _have_signal(self, groups: Groups) -> list[bool]:
        if self._filter == "any_reward_varies":
            return which_vary(groups, self.reward_weights.tolist())
        advantages = self.compute_advantages(groups.rewards, groups.token_counts)
        return (advantages != 0).any(1).tolist()

    def _generate_more(self, count: int) -> Groups:
        """Groups of further prompts on every rank; what is logged stays as it was."""
        # The tokens seen tell generations of a step apart, and are the same in a resumed run.
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
            return "further prompts are drawn by number, and the data set can only be read in order"
        if self.environment_factories is not None:
            return "the prompts are those of an environment"
        if self._is_vlm:
            return "the model is multimodal, and images cannot change their batch yet"
        config: Any = self.args
        rows = config.per_device_train_batch_size * config.steps_per_generation
        if rows % self.num_generations:
            return (
                "a group is spread over two processes: make per_device_train_batch_size × "
                f"steps_per_generation a multiple of num_generations ({self.num_generations})"
            )
        return None
