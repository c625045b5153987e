"""Defines `GDPOTrainer`, which is TRL's `GRPOTrainer` with an estimator from `gdpo.advantages`.

The class overrides three of TRL's methods and copies no code. `_generate` stores which tokens the
model generated, `_calculate_rewards` keeps the exact rewards, and `_generate_and_score_completions`
replaces TRL's advantages. A subclass or a script may change what `_calculate_rewards` returns: the
rewards that TRL gets are those that are trained on.
"""

import copy
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_config_model_id

from gdpo.advantages import AdvantageRule, gdpo
from gdpo.advantages.arrays import check_finite
from gdpo.diagnostics import Diagnosis, Watch, diagnose
from gdpo.errors import ConfigError
from gdpo.integrations._turns import on_tokens
from gdpo.integrations.trl._adapter import (
    GRPOTrainer,
    check_trainer,
    check_turns,
    end_token_ids,
    replaced,
    tokenizer_of,
)
from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._environments import (
    environment_range,
    environment_rewards,
    turn_reward,
)
from gdpo.integrations.trl._exact import ExactRewards, Returned, exact_where_kept
from gdpo.integrations.trl._filtering import FilteredGroups
from gdpo.integrations.trl._groups import Groups
from gdpo.integrations.trl._kept_state import CountedBatches, KeptState
from gdpo.integrations.trl._packing import PackedMicroBatches, loss_mask
from gdpo.integrations.trl._probe import CALLED, check_batch
from gdpo.integrations.trl._rewards import (
    all_weights,
    as_reward_functions,
    as_sequence,
    check_columns,
    check_rewards,
    check_weights_column,
    ranged,
    reward_names,
)
from gdpo.integrations.trl._rollouts import RolloutLog
from gdpo.integrations.trl._turns import (
    Located,
    TurnRewards,
    recorded,
    spread,
    warning_of_loss,
)
from gdpo.integrations.trl.generation import fast_rollouts
from gdpo.integrations.trl.logprobs import CompletionOnlyHead
from gdpo.integrations.trl.vllm_versions import check_vllm
from gdpo.rewards import apply_gates
from gdpo.rewards.gates import check_gates, closed_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import read_gates
from gdpo.rewards.weights_column import weights_of_cells
from gdpo.rollouts.record import Declared

logger = logging.getLogger(__name__)

WARNED = "gdpo, step %d: %s"
"""Form of a logged warning: the step in which it became due, and its text."""

ONE_GROUP = (
    "the generation batch contains only one group, so GDPO's batch normalization divides by the "
    "standard deviation of that group. Put more prompts into a generation batch: raise "
    "per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation (in a "
    "recipe: batch.prompts), or set the option scale_half_life of the estimator to 128"
)


_CHECKED = ("_generate", "_generate_groups", "compute_advantages")
"""Methods that the check of TRL calls. It is left out where a user's code replaces one."""

_ADDING_COLUMNS = ("_generate_and_score_completions", "_calculate_rewards")
"""Methods that may add columns to the rows before the rewards are calculated."""


class GDPOTrainer(FilteredGroups, PackedMicroBatches, CompletionOnlyHead):
    """Extends TRL's `GRPOTrainer` with multi-reward estimators and metrics for each reward.

    The arguments are those of `trl.GRPOTrainer`. `reward_funcs` may mix `gdpo.Reward` objects and
    functions written for TRL, which work unchanged. Environments can also define rewards, in
    addition to `reward_funcs` or instead of them, and declare the range in the class attribute
    `reward_range`, as `(low, high)`. In addition to TRL's metrics, the trainer logs:

    - `rewards/<name>/zero_variance_groups`: share of groups in which all samples have the same
      value of this reward, so that the reward has no effect in these groups.
    - `rewards/<name>/influence_share`: influence share over the last 256 groups.
    - `diagnostics/warnings`: number of warnings in force. Each of them is logged once as text, with
      a remedy.
    - `rewards/<name>/failed`: share of rollouts for which a `gdpo.Reward` failed (the reward counts
      as missing). `rewards/<name>/failed_<kind>`: the share for each kind of failure that occurs.
    - `rewards/<name>/gate_closed`: share of rollouts with a closed gate, where the reward is 0 or
      missing. (All other metrics of this reward are computed from the gated values.)
    - `rewards/<name>/multiplier`: multiplier of a constraint of `constrained_grpo`.
    - `filter/rounds`, `filter/replaced`, `filter/generated`: logged if `filter_groups` is set.
    - `turns/mean`, `turns/max`: mean and largest number of turns of a rollout. Logged if the
      estimator computes one advantage per turn, or a reward was given for each turn.
    - `rewards/<name>/group_std`, `diagnostics/<name>/...`, `diagnostics/...`: logged if
      `diagnostics="full"`. The metrics of `gdpo.diagnostics.diagnose`, for example the standard
      deviation within a group, and the conflict between rewards.

    A reward function or an environment may return one number for each turn of a completion instead
    of one number, and a `gdpo.Reward` may score turns (`of="turn"`). Environments may define
    `get_turn_rewards`. A turn is a message of the model. With an estimator for turns, such as
    `turn_gdpo`, each turn gets its own advantage, and a single number is at the last turn. With
    any other estimator, and in all metrics of rewards, the numbers are added up. A gate tests the
    total, and closes all turns of the gated reward.

    `frac_reward_zero_std` is the share of rollouts in groups whose advantages are all exactly 0
    under the estimator.

    Raises:
        ConfigError: If the estimator is unknown, if the weights do not match the rewards, or if two
            rewards have the same name. These checks run before TRL loads the model.
        RewardError: If a reward function raises an error, returns the wrong number of values, or
            returns a value that is neither a finite number nor None.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "gdpo"]
    _name = "GDPO"
    _returned: Returned | None = None
    """What our `_calculate_rewards` computed. Read by `_scored_groups`, which calls it. None: an
    override did not call it."""
    _masks: Any = None
    """Which tokens the model generated. Written by `_generate`, and read by `_scored_groups`."""
    _is_checked = False
    _warned_of_one_group = False
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
        bound = signature(GRPOTrainer.__init__).bind(
            self, model, reward_funcs, args, *others, **kwargs
        )
        arguments: dict[str, Any] = {k: v for k, v in bound.arguments.items() if k != "self"}
        given = as_sequence(reward_funcs)
        may_add = replaced(self, _ADDING_COLUMNS) or replaced(GRPOTrainer, _ADDING_COLUMNS)
        check_columns(given, arguments, may_add_columns=may_add)
        scorer: Any = args.scorer
        self._located = Located()
        functions, self.scorer = as_reward_functions(given, scorer, located=self._located)
        own, factory = environment_rewards(arguments.get("environment_factory"), args.seed)
        names = [*reward_names(functions), *(environment.__name__ for environment in own)]
        weights = all_weights(names, given, args.reward_weights)
        self._make_rule(
            args, names, [*ranged(given, arguments), *map(environment_range, own)], weights
        )
        self._check_weights_column(args, names, arguments)
        args = copy.copy(args)  # do not change the caller's object; TRL supports only a list
        args.reward_weights = weights[: len(given)]
        changed = {"reward_funcs": functions, "args": args, "environment_factory": factory}
        super().__init__(**{**arguments, **changed})
        assert self.reward_func_names[len(given) :] == names[len(given) :], "TRL has other names"
        args.reward_weights, self.reward_weights = weights, torch.tensor(weights)
        self._wrap_rewards([None] * len(given) + [turn_reward(e, self._located) for e in own])
        self._detail, self._watch, self._batches = args.diagnostics, Watch(), CountedBatches()
        self._warn_of_loss()
        if fast := fast_rollouts(self, wanted=args.fast_generation):
            self.rollout_func = fast
        self._add_callbacks(args)

    def _add_callbacks(self, args: GDPOConfig) -> None:
        kept = (self._rule, self._watch, self._batches)
        self.add_callback(KeptState({f"gdpo.{type(each).__name__}": each for each in kept}))
        self._rollout_log = _rollout_log(args, self._declared)
        if self._rollout_log is not None:
            self.add_callback(self._rollout_log)

    def _wrap_rewards(self, instead: Sequence[Any]) -> None:
        """Store what reward functions return. Replace those for which there is another one."""
        self._located.decode = partial(tokenizer_of(self).decode, skip_special_tokens=True)
        pairs = zip(self.reward_funcs, instead, strict=True)
        self._exact = ExactRewards(self._located, wants_turns=self._wants_turns())
        self.reward_funcs = self._exact.watched(
            [new or old for old, new in pairs], self.reward_func_names
        )

    def _warn_of_loss(self) -> None:
        warning = warning_of_loss(self._rule.name, self.loss_type)
        if self._wants_turns() and warning and self.accelerator.is_main_process:
            logger.warning("%s", warning)

    def _wants_turns(self) -> bool:
        return self._rule.wants_turns

    def _make_rule(
        self,
        args: GDPOConfig,
        names: Sequence[str],
        rewards: Sequence[Any],
        weights: Sequence[float],
    ) -> None:
        """Create the estimator and the gates. The model does not have to be loaded yet."""
        options: Any = args.advantage_options
        gates: Any = args.gates
        self._gates = read_gates(gates)
        check_gates(names, self._gates)
        low, high = declared_ranges(rewards, self._gates)
        self._rule = AdvantageRule(
            args.advantage,
            names,
            options,
            low=low,
            high=high,
            weights=torch.tensor(weights, dtype=torch.float64),
            turns=True,
        )
        if self._rule.wants_turns:
            check_turns(args.advantage, args)
        self._rule.weights_in_force(weights)  # refuses weights that contradict requested shares
        self._low, self._high = (dict(zip(names, each, strict=True)) for each in (low, high))
        self._declared = describe_rewards(names, low, high, self._gates)

    def _check_weights_column(
        self, args: GDPOConfig, names: Sequence[str], arguments: Mapping[str, Any]
    ) -> None:
        """Check the column with weights per prompt. The model does not have to be loaded yet."""
        self._weights_column = args.weights_column
        if self._weights_column is not None:
            self._rule.check_prompt_weights()
            for which in ("train_dataset", "eval_dataset"):
                check_weights_column(arguments.get(which), self._weights_column, names)

    def compute_advantages(
        self,
        rewards: torch.Tensor,
        token_counts: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        turns: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the advantages of a whole generation batch.

        Args:
            rewards: Gated rewards `[prompt, sample, reward]` of all processes, on the CPU. The
                dtype is float64, or float32 if all rewards come from reward models. For an
                estimator for turns, `[prompt, sample, turn, reward]`.
            token_counts: Number of tokens of each completion. None: the estimator does not use
                token counts.
            weights: Weights `[prompt, reward]`, if `weights_column` is set. None: the configured
                weights, for every prompt.
            turns: Number of turns of each rollout, `[prompt, sample]`. Passed only if the estimator
                computes one advantage per turn.

        Returns:
            Advantages `[prompt, sample]`, or `[prompt, sample, turn]` with `turns`.

        Raises:
            DataError: If a reward is infinite. The message identifies the reward.
            ConfigError: If a user-defined estimator returns an invalid result.
        """
        check_finite(rewards if turns is None else rewards.sum(2), self.reward_func_names)
        given = self._weights() if weights is None else weights
        weights = torch.as_tensor(given, dtype=rewards.dtype, device=rewards.device)
        return self._rule(rewards, weights, token_counts=token_counts, turns=turns)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        """Store which tokens of the completions the model generated."""
        generated = super()._generate(*args, **kwargs)
        self._masks = generated[2]
        return generated

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        rounded = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._returned = self._exact.of_all_ranks(rounded, self._ranks)
        rewards = self._returned.rewards
        # TRL computes its own metrics and sums in its own precision.
        return self._gated(rewards, rewards, self._weights_of_prompts(inputs)).to(rounded)

    @contextmanager
    def _observed_rewards(self) -> Generator[list[Groups]]:
        """Collect the groups whose rewards `_calculate_rewards` returns to TRL.

        Like `watch`, this wraps the method of the instance, so that an override or a replacement
        counts: what it returns is what is trained on.
        """
        before, calculate = vars(self).get("_calculate_rewards"), self._calculate_rewards
        observed: list[Groups] = []

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
            yield observed
        finally:
            restore()

    def _scored_groups(
        self, calculate: Any, batch: Mapping[str, Any], completion_ids: Any
    ) -> tuple[torch.Tensor, Groups]:
        """Return the rewards for TRL, and the groups that have these rewards."""
        if self._rule.weighting is not None:  # TRL's own sum of the rewards uses them too
            self.reward_weights = torch.tensor(self._weights_in_force())
        masks, self._masks, self._returned = self._masks, None, None
        self._located.update(masks, completion_ids)
        for_trl = calculate(*batch.values(), completion_ids)
        names, count = self.reward_func_names, len(completion_ids) * self._ranks.count
        check_rewards(for_trl, count, names)
        own = self._weights_of_prompts(batch["inputs"])
        returned = self._returned
        calls_ours = returned is not None
        if returned is None or len(returned.rewards) != count:  # not called, or called for parts
            returned = self._exact.of_all_ranks(for_trl.detach().double(), self._ranks)
        gated = self._gated(returned.rewards, returned.rewards, own)
        for_trl = for_trl if calls_ours else gated.to(for_trl)
        rewards, kept = exact_where_kept(gated, for_trl.detach().cpu())
        turns = self._turns_of(returned, own, rewards, kept)
        of_record = {"turn_tokens": None if turns is None else self._located.num_tokens}
        return for_trl, Groups(
            rewards=rewards.view(-1, self._samples(), len(names)),
            token_counts=self._count_tokens(completion_ids),
            closed_gates=closed_gates(returned.rewards, names, self._gates),
            rollouts={**batch, "completion_ids": completion_ids, **of_record},
            weights=None if own is None else own.nan_to_num(),
            turns=turns,
        )

    def _turns_of(
        self,
        returned: Returned,
        own: torch.Tensor | None,
        rewards: torch.Tensor,
        kept: torch.Tensor,
    ) -> TurnRewards | None:
        """Return the rewards of each turn. A total that was changed stands at the last turn."""
        if returned.turns is None:
            return None
        turns = self._gated(returned.turns, returned.rewards, own)
        turns = torch.where(kept[:, None], turns, spread(rewards, (), returned.counts))
        return TurnRewards(
            turns.view(-1, self._samples(), *turns.shape[1:]),
            torch.tensor(returned.counts).view(-1, self._samples()),
        )

    def _gated(
        self, rewards: torch.Tensor, totals: torch.Tensor, own: torch.Tensor | None
    ) -> torch.Tensor:
        """Return rewards `[rollout, ..., reward]`, gated and without those that do not apply.

        Args:
            rewards: The totals, or the rewards of each turn.
            totals: Rewards `[rollout, reward]`, which the gates test.
            own: Weights `[prompt, reward]`, where NaN means that a reward does not apply.
        """
        between = (slice(None), *[None] * (rewards.ndim - 2))
        if self._gates:
            names = self.reward_func_names
            rewards = apply_gates(rewards, names, self._gates, conditions=totals[between])
        if own is not None:
            missing = own.isnan().repeat_interleave(self._samples(), 0)
            rewards = torch.where(missing[between], torch.nan, rewards)
        return rewards

    def _weights_of_prompts(self, inputs: Sequence[Mapping[str, Any]]) -> torch.Tensor | None:
        """Return the weights `[prompt, reward]` of all processes' prompts. NaN: does not apply."""
        if self._weights_column is None:
            return None
        cells = [row.get(self._weights_column) for row in inputs]
        names, column = self.reward_func_names, self._weights_column
        here = weights_of_cells(cells, names, self._weights(), column=column)
        rows: Any = gather_object(here.tolist())
        return torch.tensor(rows, dtype=torch.float64)[:: self._samples()]

    def _count_tokens(self, completion_ids: Any) -> torch.Tensor | None:
        if not self._rule.wants_token_counts:
            return None
        lengths = [len(ids) for ids in completion_ids]
        here = torch.tensor(lengths, device=self.accelerator.device)
        gathered: Any = self.accelerator.gather(here)
        return gathered.view(-1, self._samples()).cpu()

    def _samples(self) -> int:
        training = bool(self.model and self.model.training)
        return (self.num_generations if training else self.num_generations_eval) or 1

    def _generate_groups(self, inputs: Any) -> Groups:
        with self._observed_rewards() as observed:
            output = super()._generate_and_score_completions(inputs)
        assert len(observed) == 1, f"TRL called _calculate_rewards {len(observed)} times"
        observed[0].output = output
        return observed[0]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        mode = "train" if self.model and self.model.training else "eval"
        self._check_trl()
        generated = self._generate_with_signal(inputs)
        batch = self._trained(generated)
        advantages = self._replace_advantages(batch)
        means = _of_rollouts(advantages, batch)
        self._warn_of_one_group(mode, batch.rewards)
        self._log_advantages(generated[0].their_own(means))
        diagnosis = self._diagnose(batch, means)
        if mode == "train":
            diagnosis = self._watch.update(diagnosis)
            self._warn()
        self._log_diagnosis(mode, diagnosis, batch.closed_gates)
        self._log_turns(mode, batch)
        for groups in generated:
            self._record(mode, groups, groups.their_own(advantages))
        if mode == "train" and self._batches.counts(self.state.global_step, self._steps_of_batch()):
            self._rule.update(generated[0].rewards, self._weights(generated[0]))
        return batch.output

    def _steps_of_batch(self) -> int:
        config: Any = self.args
        micro_batches = config.steps_per_generation * self.num_iterations
        return micro_batches // config.gradient_accumulation_steps

    def _replace_advantages(self, batch: Groups) -> torch.Tensor:
        """Put our advantages into TRL's batch. Return those of all processes."""
        theirs = batch.output["advantages"]
        advantages = self._advantages_of(batch)
        advantages = advantages.to(theirs.dtype)  # the record matches training
        own = self._local_part(advantages.flatten(0, 1), theirs)
        if own.ndim == 2:  # [row, turn]
            own = on_tokens(own, loss_mask(batch.output))
        batch.output["advantages"] = own
        return advantages

    def _check_trl(self) -> None:
        """Check once, before anything is generated, that TRL trains on our advantages."""
        if not self._is_checked:
            self._is_checked = True
            if not replaced(self, _CHECKED) and not replaced(GRPOTrainer, CALLED):
                check_batch(self, self._made_up_batch)

    def _made_up_batch(self, inputs: Any) -> Any:
        self._rule, self._gates = AdvantageRule("gdpo", self.reward_func_names), {}
        self._calculate_rewards = partial(_CALCULATE_REWARDS, self)
        batch = self._generate_groups(inputs)
        self._replace_advantages(batch)
        return batch.output

    def _local_part(self, advantages: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """Return the advantages of this process's rollouts. A group may span two processes."""
        start = self.accelerator.process_index * len(local)
        return advantages[start : start + len(local)].to(local)

    def _diagnose(self, batch: Groups, advantages: torch.Tensor) -> Diagnosis:
        return diagnose(
            batch.rewards,
            self._weights_in_force(batch),
            self.reward_func_names,
            estimator=self._rule.name,
            advantages=advantages,
            low=self._low,
            high=self._high,
        )

    def _weights_in_force(self, groups: Groups | None = None) -> Any:
        return self._rule.weights_in_force(self._weights(groups))

    def _weights(self, groups: Groups | None = None) -> list[Any]:
        """Return the weights that the rule multiplies: `[reward]`, or `[prompt, reward]`.

        A callback may change fixed weights.
        """
        if groups is not None and groups.weights is not None:
            return groups.weights.tolist()
        config: Any = self.args
        changing = self._rule.weighting is not None
        return list(config.reward_weights) if changing else self.reward_weights.tolist()

    def _log_diagnosis(
        self, mode: str, diagnosis: Diagnosis, closed_gates: Mapping[str, float]
    ) -> None:
        metrics = self._metrics[mode]
        for name, share in closed_gates.items():
            metrics[f"rewards/{name}/gate_closed"].append(share)
        for key, value in self._rule.metrics(self.reward_func_names, self._weights()).items():
            # TRL logs the mean of the values since the last log, but a status has no mean.
            metrics[key] = [value]
        for key, value in trl_metrics(diagnosis, self._detail).items():
            metrics[key].append(value)
        metrics["frac_reward_zero_std"][-1] = diagnosis.zero_advantage_groups

    def _log_turns(self, mode: str, batch: Groups) -> None:
        if batch.turns is not None:
            counts = batch.turns.counts.double()
            self._metrics[mode]["turns/mean"].append(counts.mean().item())
            self._metrics[mode]["turns/max"].append(counts.max().item())

    def _warn(self) -> None:
        if self.accelerator.is_main_process:
            for finding in self._watch.due:
                logger.warning(WARNED, self.state.global_step + 1, finding.line)

    def _log_advantages(self, advantages: torch.Tensor) -> None:
        """Replace the advantages in TRL's table of completions."""
        shown: Any = self._logs["advantages"]
        flat = advantages.reshape(-1).tolist()
        for _ in range(min(len(flat), len(shown))):
            shown.pop()
        shown.extend(flat)

    def _record(self, mode: str, groups: Groups, advantages: torch.Tensor) -> None:
        if self._rollout_log is None or groups.rollouts is None:
            return
        self._rollout_log.collect(**groups.rollouts, ends_of_text=self._ends_of_text())
        facts = self._rollout_log.gathered()
        if not self.accelerator.is_main_process:
            return
        if groups.turns is not None:
            facts = recorded(facts, groups.turns, advantages, self.reward_func_names)
        self._rollout_log.write(
            facts,
            mode=mode,
            step=self.state.global_step + (mode == "train"),
            rewards=groups.rewards,
            advantages=_of_rollouts(advantages, groups),
            trained=[place is not None for place in groups.places],
            weights=self._weights_by_name(groups),
        )

    def _weights_by_name(self, groups: Groups) -> list[dict[str, float]]:
        """Return the weights of each group by reward name."""
        # A replay multiplies by the multipliers of constraints again.
        recorded = self._weights if self._rule.duals is not None else self._weights_in_force
        rows = np.broadcast_to(recorded(groups), groups.rewards[:, 0].shape).tolist()
        return [dict(zip(self.reward_func_names, row, strict=True)) for row in rows]

    def _ends_of_text(self) -> set[int]:
        tokenizer: Any = self._tokenizer
        ends: list[Any] = [*end_token_ids(self), tokenizer.pad_token_id]
        return set(ends)

    def _warn_of_one_group(self, mode: str, rewards: torch.Tensor) -> None:
        if mode == "train" and len(rewards) == 1 and not self._warned_of_one_group:
            normalizes = self._rule.estimator is gdpo and self._rule.scale is None
            if normalizes and self.accelerator.is_main_process:
                logger.warning(ONE_GROUP)
            self._warned_of_one_group = True


_CALCULATE_REWARDS = GDPOTrainer._calculate_rewards  # pyright: ignore[reportPrivateUsage]
"""Our own method, also after a script has replaced it on the class."""


def _of_rollouts(advantages: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return advantages `[prompt, sample]`: the mean over the turns, if each turn has its own."""
    if advantages.ndim == 2:
        return advantages
    assert groups.turns is not None, "advantages of turns without turns"
    return groups.turns.mean_advantages(advantages)


def trl_metrics(diagnosis: Diagnosis, detail: str) -> dict[str, float]:
    """Return the metrics of a diagnosis that TRL does not log under names of its own."""
    by_trl = {f"diagnostics/{reward.name}/mean" for reward in diagnosis.rewards}
    by_trl.add("diagnostics/zero_advantage_groups")  # TRL: frac_reward_zero_std
    metrics = diagnosis.metrics(detail=detail)
    return {key: value for key, value in metrics.items() if key not in by_trl}


def _checked(args: Any, model: Any) -> GDPOConfig:
    """Return `args`, or a default configuration like TRL's if `args` is None."""
    check_trainer()
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


def _rollout_log(args: GDPOConfig, declared: Declared) -> RolloutLog | None:
    folder = args.rollouts_dir
    return RolloutLog(Path(folder), args, declared=declared) if folder else None
