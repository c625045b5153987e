import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gdpo.advantages import AdvantageRule
from gdpo.integrations.trl._adapter import check_turns
from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._rewards import check_weights_column
from gdpo.priority import LARGEST, Combination, Continuous, in_words, priority
from gdpo.rewards import apply_gates
from gdpo.rewards.gates import Gate, check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import read_gates
from gdpo.rollouts.record import Declared

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Objective:
    names: Sequence[str]
    rule: AdvantageRule
    gates: Mapping[str, Gate]
    low: Sequence[float]
    """The lowest value of each reward. NaN: not declared."""
    high: Sequence[float]
    declared: Declared
    """Ranges and gates, in the format of the rollout record."""
    weights_column: str | None
    """Dataset column with weights of each prompt. None: the same weights for all prompts."""

    def gated(
        self, rewards: torch.Tensor, totals: torch.Tensor, own: torch.Tensor | None, samples: int
    ) -> torch.Tensor:
        """Return gated rewards `[rollout, ..., reward]`, with NaN where a reward does not apply.

        The gates test the totals `[rollout, reward]`. NaN in the prompts' own weights `[prompt,
        reward]` means that a reward does not apply.
        """
        between = (slice(None), *[None] * (rewards.ndim - 2))
        if self.gates:
            grouped = any(gate.of == "group" for gate in self.gates.values())
            groups = (-1, samples if grouped else 1)
            tested = totals[between].unflatten(0, groups)
            rewards = rewards.unflatten(0, groups)
            rewards = apply_gates(rewards, self.names, self.gates, conditions=tested).flatten(0, 1)
        if own is not None:
            missing = own.isnan().repeat_interleave(samples, 0)
            rewards = torch.where(missing[between], torch.nan, rewards)
        return rewards

    def log_priority(self, args: GDPOConfig, weights: Sequence[float]) -> None:
        """Log whether the reward with the largest weight always wins, if this is known.

        The ranges must be declared and the weights fixed. That reward is assumed to be binary.
        """
        pairs = zip(self.low, self.high, strict=True)
        ends: dict[str, Any] = dict(zip(self.names, pairs, strict=True))
        options: Any = args.advantage_options or {}
        primary = max(zip(weights, self.names, strict=True), key=lambda pair: pair[0])[1]
        known = np.abs(np.array([self.low, self.high], np.float64)) <= LARGEST  # not if NaN
        if self.rule.weighting is not None or not known.all() or max(weights) <= 0:
            return
        values: Any = {name: Continuous(*pair) for name, pair in ends.items()}
        samples, named = args.num_generations or 2, dict(zip(self.names, weights, strict=True))
        combined = Combination(named, samples, args.advantage, options, self.gates)
        answer = priority(combined, values | {primary: ends[primary]}, primary)
        if answer.holds is None:
            return
        level = logging.INFO if answer.holds else logging.WARNING
        logger.log(level, "priority: %s", in_words(combined, answer))


def objective_of(
    args: GDPOConfig,
    names: Sequence[str],
    rewards: Sequence[Any],
    weights: Sequence[float],
    arguments: Mapping[str, Any],
) -> Objective:
    """Check a configuration before the model is loaded. `rewards` declare ranges, or are None."""
    options: Any = args.advantage_options
    gates = read_gates(args.gates)
    check_gates(names, gates)
    low, high = declared_ranges(rewards, gates)
    rule = AdvantageRule(
        args.advantage,
        names,
        options,
        low=low,
        high=high,
        weights=torch.tensor(weights, dtype=torch.float64),
        turns=True,
    )
    if rule.wants_turns:
        check_turns(args)
    if args.weights_column is not None:
        rule.check_prompt_weights()
        check_weights_column(arguments, args.weights_column, names)
    return Objective(
        names=names,
        rule=rule,
        gates=gates,
        low=low,
        high=high,
        declared=describe_rewards(names, low, high, gates),
        weights_column=args.weights_column,
    )
