"""Defines `GDPOTrainer`, which is TRL's `GRPOTrainer` with an estimator from `gdpo.advantages`.

The class overrides methods of TRL and copies no code. A subclass or a script may change what
`_calculate_rewards` returns: TRL trains on the rewards that it gets.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from itertools import count
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_config_model_id

from gdpo.advantages import AdvantageRule, gdpo
from gdpo.advantages.arrays import check_finite
from gdpo.errors import ConfigError
from gdpo.integrations._turns import of_rollouts, on_tokens
from gdpo.integrations.trl._accounting import Accounting
from gdpo.integrations.trl._adapter import (
    GRPOTrainer,
    is_training,
    refuse_missing,
    replaced,
    say,
    tokenizer_of,
)
from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._environments import environment_range, environment_rewards, turn_reward
from gdpo.integrations.trl._groups import GeneratedGroups, GroupFilter, Ranks
from gdpo.integrations.trl._objective import objective_of
from gdpo.integrations.trl._observing import (
    CountedBatches,
    KeptState,
    Observer,
    RolloutLog,
)
from gdpo.integrations.trl._packing import loss_mask, packer_of, weighed
from gdpo.integrations.trl._probe import CALLED, Trial, check_batch
from gdpo.integrations.trl._rewards import (
    ExactRewards,
    Returned,
    all_weights,
    as_reward_functions,
    as_sequence,
    check_columns,
    check_rewards,
    exact_where_kept,
    name_of,
    ranged,
)
from gdpo.integrations.trl._turns import Located, TurnRewards, spread, warning_of_loss
from gdpo.integrations.trl.generation import fast_rollouts
from gdpo.integrations.trl.logprobs import bound_memory, head_of
from gdpo.integrations.trl.vllm_versions import check_vllm
from gdpo.rewards.gates import closed_gates
from gdpo.rewards.text import left_open
from gdpo.rewards.weights_column import weights_of_cells

ONE_GROUP = (
    "the generation batch contains only one group, so GDPO's batch normalization divides by the "
    "standard deviation of that group. Put more prompts into a generation batch: raise "
    "per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation (in a "
    "recipe: batch.prompts), or set the option scale_half_life of the estimator to 128"
)


_CHECKED = ("_generate", "_generate_groups", "compute_advantages")
"""Methods that the check of TRL calls. The check is skipped where a user's code replaces one."""

_ADDING_COLUMNS = ("_generate_and_score_completions", "_calculate_rewards")
"""Methods that may add columns to the rows before the rewards are calculated."""


@dataclass
class BetweenCalls:
    masks: Any = None
    """Which tokens the model generated. `_generate` writes it, `_scored_groups` takes it."""
    returned: Returned | None = None
    """What our `_calculate_rewards` computed, for `_scored_groups`, which calls it. None: an
    override did not call it."""
    is_checked: bool = False
    """Whether the first batch has checked that TRL trains on our advantages."""
    has_warned_of_one_group: bool = False


class GDPOTrainer(GRPOTrainer):
    """Extends TRL's `GRPOTrainer` with multi-reward estimators and metrics for each reward.

    The arguments are those of `trl.GRPOTrainer`. `reward_funcs` may mix `gdpo.Reward` objects and
    functions for TRL, unchanged. Environments can define rewards too, and declare the range in the
    class attribute `reward_range`, as `(low, high)`. The trainer also logs:

    - `rewards/<name>/zero_variance_groups`: share of groups in which this reward does not vary.
    - `rewards/<name>/influence_share`: influence share over the last 256 groups.
    - `diagnostics/warnings`: number of warnings in force, each of which is logged once as text.
    - `rewards/<name>/failed`: share of rollouts for which a `gdpo.Reward` failed (the reward counts
      as missing). `rewards/<name>/failed_<kind>`: the share for each kind of failure that occurs.
    - `rewards/<name>/gate_closed`: share of rollouts with a closed gate. The reward's other metrics
      are of the gated values.
    - `rewards/<name>/multiplier`: multiplier of a constraint of `constrained_grpo`.
    - `filter/...`: logged if `filter_groups` is set.
    - `turns/mean`, `turns/max`: mean and largest number of turns per rollout, with an estimator or
      a reward for turns.
    - `rewards/<name>/group_std`, `diagnostics/<name>/...`, `diagnostics/...`: with
      `diagnostics="full"`, the metrics of `gdpo.diagnostics.diagnose`.

    `frac_reward_zero_std` is the share of rollouts in groups whose advantages are all exactly 0.

    A reward function or an environment (with `get_turn_rewards`) may return one number for each
    turn of a completion, and a `gdpo.Reward` may score turns (`of="turn"`). A turn is a message of
    the model (docs/how-to/turn_rewards.md). With an estimator for turns, such as `turn_gdpo`, each
    turn gets its own advantage; a single number counts at the last turn. Any other estimator, and
    all metrics of rewards, use the sum. A gate tests the sum, and applies to all turns.

    Raises:
        ConfigError: If the estimator is unknown, the weights do not match the rewards, or two
            rewards have the same name, before TRL loads the model.
        RewardError: If a reward function raises an error, or returns the wrong number of values or
            one that is neither a finite number nor None.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242.
    """

    args: GDPOConfig
    _tag_names: ClassVar[list[str]] = ["trl", "gdpo"]
    _name = "GDPO"
    _paper: ClassVar[dict[str, str]] = {
        "title": "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward "
        "RL Optimization",
        "id": "2601.05242",
    }

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GDPOConfig | None = None,
        *others: Any,
        **kwargs: Any,
    ) -> None:
        args = _checked(args, model)
        bound = signature(GRPOTrainer).bind(model, reward_funcs, args, *others, **kwargs)
        arguments: dict[str, Any] = bound.arguments
        given = as_sequence(reward_funcs)
        may_add = replaced(self, _ADDING_COLUMNS) or replaced(GRPOTrainer, _ADDING_COLUMNS)
        check_columns(given, arguments, may_add_columns=may_add)
        scorer: Any = args.scorer
        self._located = Located()
        functions, self.scorer = as_reward_functions(given, scorer, located=self._located)
        own, factory = environment_rewards(arguments.get("environment_factory"), args.seed)
        names = [*map(name_of, functions), *(environment.__name__ for environment in own)]
        weights = all_weights(names, given, args.reward_weights)
        rewards = [*ranged(given, arguments), *map(environment_range, own)]
        self._objective = objective_of(args, names, rewards, weights, arguments)
        wants_turns = self._objective.rule.wants_turns
        self._exact = ExactRewards(self._located, wants_turns=wants_turns)
        args = copy.copy(args)  # do not change the caller's object; TRL supports only a list
        args.reward_weights = weights[: len(given)]
        arguments |= {
            "reward_funcs": list(map(self._exact.watched, count(), functions, names)),
            "args": args,
            "environment_factory": factory,
        }
        super().__init__(**arguments)
        assert self.reward_func_names[len(given) :] == names[len(given) :], "TRL has other names"
        args.reward_weights, self.reward_weights = weights, torch.tensor(weights)
        self._between = BetweenCalls()
        self._ranks = Ranks(self.accelerator.num_processes, self.accelerator.process_index)
        self._filter = GroupFilter(self, self._ranks)
        self._watch_environments(own)
        self._observe(args)
        self._speed_up()

    def _speed_up(self) -> None:
        bound_memory(self)
        self._packer = packer_of(self)
        trls = super()._get_per_token_logps_and_entropies
        self._speed_ups = Trial(self, trls, self._packer, head_of(self))
        if fast := fast_rollouts(self, wanted=self.args.fast_generation):
            self.rollout_func = fast

    def _watch_environments(self, environments: Sequence[type]) -> None:
        self._located.decode = partial(tokenizer_of(self).decode, skip_special_tokens=True)
        names = self.reward_func_names
        for column, environment in enumerate(environments, len(names) - len(environments)):
            function = turn_reward(environment, self._located) or self.reward_funcs[column]
            self.reward_funcs[column] = self._exact.watched(column, function, names[column])

    def _observe(self, args: GDPOConfig) -> None:
        objective, self._batches = self._objective, CountedBatches()
        self._observer = Observer(
            self, objective.rule.name, args.diagnostics, low=objective.low, high=objective.high
        )
        kept = (objective.rule, self._observer.watch, self._batches)
        every, folder = args.effect_every, args.rollouts_dir
        self._accounting = Accounting(self, objective.names, every) if every else None
        self._rollout_log = (
            RolloutLog(folder, self, declared=objective.declared) if folder else None
        )
        for each in (
            self._observer,
            KeptState({f"gdpo.{type(each).__name__}": each for each in kept}),
            self._accounting,
            self._rollout_log,
        ):
            if each is not None:
                self.add_callback(each)
        warning = warning_of_loss(objective.rule.name, self.loss_type)
        if objective.rule.wants_turns and warning:
            say(self, warning)
        if self.accelerator.is_main_process:
            objective.log_priority(args, self._weights())

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        samples = super().get_batch_samples(*args, **kwargs)
        if self._packer is not None:
            self._packer.begin(len(samples[0]))
        return samples

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        inputs: Any = super()._prepare_inputs(*args, **kwargs)
        if not is_training(self):
            return inputs
        self._speed_ups.run(inputs["prompt_ids"].shape[1], inputs["completion_ids"].shape[1])
        return inputs if self._packer is None else self._packer.packed(inputs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        if self._packer is not None:
            self._packer.look_for_gradients()
        return loss

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        ids = inputs["completion_ids"]
        if not len(ids):  # the packer has put all rollouts into later micro-batches
            return torch.zeros((), device=ids.device, requires_grad=True)
        return weighed(self, inputs, super()._compute_loss(model, inputs))

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        return self._speed_ups.score(*args, **kwargs)

    def compute_advantages(
        self,
        rewards: torch.Tensor,
        token_counts: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        turns: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the advantages of a whole generation batch.

        Args:
            rewards: Gated rewards `[prompt, sample, reward]` of all processes, on the CPU, in
                float64 (in float32 if all rewards come from reward models). For an estimator for
                turns, `[prompt, sample, turn, reward]`.
            token_counts: Number of tokens of each completion. None: the estimator does not use
                them.
            weights: Weights `[prompt, reward]`, if `weights_column` is set. None: the configured
                ones.
            turns: Number of turns of each rollout, `[prompt, sample]`, for an estimator for turns.

        Returns:
            Advantages `[prompt, sample]`, or `[prompt, sample, turn]` with `turns`.

        Raises:
            DataError: If a reward is infinite.
            ConfigError: If a user-defined estimator returns an invalid result.
        """
        check_finite(rewards if turns is None else rewards.sum(2), self.reward_func_names)
        given = self._weights() if weights is None else weights
        weights = torch.as_tensor(given, dtype=rewards.dtype, device=rewards.device)
        return self._objective.rule(rewards, weights, token_counts=token_counts, turns=turns)

    def _advantages_of(self, groups: GeneratedGroups) -> torch.Tensor:
        # A subclass may override the method without the arguments `weights` and `turns`.
        own = {} if groups.weights is None else {"weights": groups.weights}
        rewards = groups.rewards
        if self._objective.rule.wants_turns:
            rewards, own["turns"] = groups.by_turn.rewards, groups.by_turn.counts
        return self.compute_advantages(rewards, groups.token_counts, **own)

    def _tokenize_prompts(self, *args: Any, **kwargs: Any) -> Any:
        ids, images, fields = super()._tokenize_prompts(*args, **kwargs)
        most = self.args.max_prompt_tokens
        if most is None:
            return ids, images, fields
        if images is not None or fields:
            raise ConfigError("max_prompt_tokens cannot truncate prompts with images: remove it")
        return [each[-most:] for each in ids], images, fields

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        generated = super()._generate(*args, **kwargs)
        if is_training(self) and self._between.is_checked:  # not of a made-up batch
            self._speed_ups.run(*(max(map(len, ids)) for ids in generated[:2]))
        self._between.masks = generated[2]
        ends = [self._located.decode(ids[-_TAIL:]) for ids in generated[0]]
        self._located.opened = list(map(left_open, ends))
        return generated

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        rounded = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._between.returned = returned = self._exact.of_all_ranks(rounded, self._ranks)
        own, rewards = self._weights_of_prompts(inputs), returned.rewards
        # TRL computes its own metrics and sums in its own precision.
        return self._objective.gated(rewards, rewards, own, self._samples()).to(rounded)

    def _weights_of_prompts(self, inputs: Any) -> torch.Tensor | None:
        """Return the weights `[prompt, reward]` of all processes' prompts. NaN: does not apply."""
        names, column = self._objective.names, self._objective.weights_column
        if column is None:
            return None
        cells = [row.get(column) for row in inputs]
        here = weights_of_cells(cells, names, self._weights(), column=column)
        rows: Any = gather_object(here.tolist())
        return torch.tensor(rows, dtype=torch.float64)[:: self._samples()]

    def _generate_groups(self, inputs: Any) -> GeneratedGroups:
        """Return the groups whose rewards `_calculate_rewards` returns to TRL.

        This wraps the method of the instance, so that an override or a replacement counts.
        """
        before, calculate = vars(self).get("_calculate_rewards"), self._calculate_rewards
        observed: list[GeneratedGroups] = []

        def calculated(
            inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> torch.Tensor:
            restore()  # the method may replace or remove itself
            batch = {"inputs": inputs, "prompts": prompts, "completions": completions}
            for_trl, groups = self._scored_groups(calculate, batch, completion_ids_list)
            observed.append(groups)
            return for_trl

        def restore() -> None:
            if vars(self).get("_calculate_rewards") is calculated:
                del self._calculate_rewards
                if before is not None:
                    self._calculate_rewards = before

        self._calculate_rewards = calculated
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            restore()
        assert len(observed) == 1, f"TRL called _calculate_rewards {len(observed)} times"
        observed[0].output = output
        return observed[0]

    def _scored_groups(
        self, calculate: Any, batch: Mapping[str, Any], completion_ids: Any
    ) -> tuple[torch.Tensor, GeneratedGroups]:
        objective, between, samples = self._objective, self._between, self._samples()
        if objective.rule.weighting is not None:  # TRL's own sum of the rewards uses them too
            self.reward_weights = torch.tensor(self._weights_in_force())
        self._located.update(between.masks, completion_ids)
        between.masks = between.returned = None
        for_trl = calculate(*batch.values(), completion_ids)
        names, count = self.reward_func_names, len(completion_ids) * self._ranks.count
        check_rewards(for_trl, count, names)
        own = self._weights_of_prompts(batch["inputs"])
        returned: Returned | None = between.returned
        calls_ours = returned is not None
        if returned is None or len(returned.rewards) != count:  # not called, or called for parts
            returned = self._exact.of_all_ranks(for_trl.detach().double(), self._ranks)
        gated = objective.gated(returned.rewards, returned.rewards, own, samples)
        for_trl = for_trl if calls_ours else gated.to(for_trl)
        rewards, kept = exact_where_kept(gated, for_trl.detach().cpu())
        turns, grouped = None, (-1, samples)
        if returned.turns is not None:
            of_turns = objective.gated(returned.turns, returned.rewards, own, samples)
            # A total that was changed stands at the last turn.
            of_turns = of_turns.where(kept[:, None], spread(rewards, (), returned.counts))
            counts = torch.tensor(returned.counts).view(grouped)
            turns = TurnRewards(of_turns.unflatten(0, grouped), counts)
        token_counts = None
        if objective.rule.wants_token_counts:
            lengths = [len(ids) for ids in completion_ids]
            here = torch.tensor(lengths, device=self.accelerator.device)
            gathered: Any = self.accelerator.gather(here)
            token_counts = gathered.view(grouped).cpu()
        inputs = zip(batch["inputs"], self._located.opened, strict=False)
        return for_trl, GeneratedGroups(
            rewards=rewards.unflatten(0, grouped),
            token_counts=token_counts,
            closed_gates=closed_gates(
                returned.rewards.unflatten(0, grouped), names, objective.gates
            ),
            rollouts={
                **batch,
                "inputs": [{**row, "opened": tag} if tag else row for row, tag in inputs],
                "completion_ids": completion_ids,
                "turn_tokens": self._located.num_tokens,
            },
            weights=None if own is None else own.nan_to_num(),
            turns=turns,
        )

    def _samples(self) -> int:
        return (self.num_generations if is_training(self) else self.num_generations_eval) or 1

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        mode = "train" if is_training(self) else "eval"
        self._check_trl()
        generated = self._filter.generated(inputs)
        batch = self._filter.trained(generated)
        advantages = self._replace_advantages(batch)
        self._log(mode, generated[0], batch, of_rollouts(advantages, batch.by_turn.counts))
        if (log := self._rollout_log) is not None:
            for groups in generated:
                self._record(log, groups, advantages)
        args: Any = self.args
        micro_batches = args.steps_per_generation * self.num_iterations
        steps = micro_batches // args.gradient_accumulation_steps
        if mode == "train" and self._accounting is not None:
            weights = self._weights_in_force(batch)
            self._accounting.take(batch.output, batch.rewards, weights, advantages)
        if mode == "train" and self._batches.counts(self.state.global_step, steps):
            self._objective.rule.update(generated[0].rewards, self._weights(generated[0]))
        return batch.output

    def _replace_advantages(self, batch: GeneratedGroups) -> torch.Tensor:
        theirs = batch.output["advantages"]
        advantages = self._advantages_of(batch).to(theirs.dtype)  # the record matches training
        # A group may span two processes.
        own = self._ranks.own(advantages.flatten(0, 1)).to(theirs)
        if own.ndim == 2:  # [row, turn]
            own = on_tokens(own, loss_mask(batch.output))
        batch.output["advantages"] = own
        return advantages

    def _check_trl(self) -> None:
        if not self._between.is_checked:
            self._between.is_checked = True
            if not replaced(self, _CHECKED) and not replaced(GRPOTrainer, CALLED):
                check_batch(self, self._made_up_batch)

    def _made_up_batch(self, inputs: Any) -> Any:
        rule = AdvantageRule("gdpo", self.reward_func_names)
        self._objective = replace(
            self._objective, names=self.reward_func_names, rule=rule, gates={}
        )
        self._between = BetweenCalls()
        self._calculate_rewards = partial(_CALCULATE_REWARDS, self)
        batch = self._generate_groups(inputs)
        self._replace_advantages(batch)
        return batch.output

    def _weights_in_force(self, groups: GeneratedGroups | None = None) -> Any:
        return self._objective.rule.weights_in_force(self._weights(groups))

    def _weights(self, groups: GeneratedGroups | None = None) -> list[Any]:
        """Return the weights (`[reward]` or `[prompt, reward]`), which a callback may change."""
        if groups is not None and groups.weights is not None:
            return groups.weights.tolist()
        changing = self._objective.rule.weighting is not None
        given: Any = self.args.reward_weights if changing else self.reward_weights.tolist()
        return list(given)

    def _log(
        self, mode: str, first: GeneratedGroups, batch: GeneratedGroups, advantages: torch.Tensor
    ) -> None:
        """Log a batch, and replace the advantages in TRL's table of the first generation."""
        rule, metrics, names = self._objective.rule, self._metrics[mode], self.reward_func_names
        if (
            mode == "train"
            and len(batch.rewards) == 1
            and not self._between.has_warned_of_one_group
        ):
            if rule.estimator is gdpo and rule.scale is None:
                say(self, ONE_GROUP)
            self._between.has_warned_of_one_group = True
        shown: Any = self._logs["advantages"]
        flat = first.their_own(advantages).reshape(-1).tolist()
        for _ in range(min(len(flat), len(shown))):
            shown.pop()
        shown.extend(flat)
        weights = self._weights_in_force(batch)
        diagnosis = self._observer.diagnosis(batch.rewards, weights, names, advantages)
        for name, share in batch.closed_gates.items():
            metrics[f"rewards/{name}/gate_closed"].append(share)
        for key, value in rule.metrics(names, self._weights()).items():
            # TRL logs the mean of the values since the last log, but a status has no mean.
            metrics[key] = [value]
        for key, value in self._observer.metrics(diagnosis).items():
            metrics[key].append(value)
        metrics["frac_reward_zero_std"][-1] = diagnosis.zero_advantage_groups
        if batch.turns is not None:
            counts = batch.turns.counts.double()
            metrics["turns/mean"].append(counts.mean().item())
            metrics["turns/max"].append(counts.max().item())

    def _record(self, log: RolloutLog, groups: GeneratedGroups, advantages: torch.Tensor) -> None:
        log.collect(**groups.rollouts)
        log.write(
            log.gathered(),
            self.reward_func_names,
            groups.rewards,
            groups.their_own(advantages),
            self._objective.rule.recorded_weights(self._weights(groups)),
            trained=[place is not None for place in groups.places],
            turns=groups.turns,
        )


_TAIL = 32
"""Number of tokens at the end of a prompt in which a tag is looked for."""

_CALCULATE_REWARDS = GDPOTrainer._calculate_rewards  # pyright: ignore[reportPrivateUsage]
"""Our own method, even after a script has replaced it on the class."""


def _checked(args: Any, model: Any) -> GDPOConfig:
    refuse_missing("trainer", "GDPOTrainer")
    if args is None:
        name = model if isinstance(model, str) else get_config_model_id(model.config)
        return GDPOConfig(f"{name.split('/')[-1]}-GDPO")
    if not isinstance(args, GDPOConfig):
        raise ConfigError(
            f"args is a {type(args).__name__}, not a GDPOConfig: use GDPOConfig(...) with the "
            "same arguments"
        )
    if args.use_vllm:
        check_vllm(same_process=args.vllm_mode == "colocate")
    return args
