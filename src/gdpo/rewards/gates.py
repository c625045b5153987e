"""Defines gates: a gated reward counts only if another reward, or its mean, reaches a threshold.

A closed gate makes the reward 0 or missing (see `apply_gates`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Literal, TypeAlias, get_args

from array_api_compat import array_namespace

from gdpo._naming import refuse_unknown
from gdpo._shapes import Bool, Float
from gdpo.advantages.stages import mean
from gdpo.errors import ConfigError
from gdpo.rewards.reward import DeclaredRange, Reward

Otherwise = Literal["zero", "missing"]
"""Value of a reward whose gate is closed."""

Of = Literal["rollout", "group"]
"""Whose reward opens a gate: that of the rollout, or the mean over its group."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Stores the condition of a gate: the reward `on` must be at least `at_least`.

    Args:
        on: Name of the reward that opens the gate, usually the harder of the two rewards.
        at_least: Lowest value of that reward at which the gate is open.
        otherwise: The gated reward behind a closed gate.
        of: `rollout`: the reward of each rollout is tested. `group`: its mean over the group, which
            is the prompt's pass rate if the reward is 0 or 1. The gate is then open for all
            rollouts of the group, or for none.

    Raises:
        ConfigError: If `at_least` is not finite, or `otherwise` or `of` is unknown.
    """

    on: str
    at_least: float
    otherwise: Otherwise = "zero"
    of: Of = "rollout"

    def __post_init__(self) -> None:
        if self.otherwise not in get_args(Otherwise):
            raise ConfigError(
                f"otherwise of a gate on {self.on!r} is {self.otherwise!r}: write zero (a closed "
                "gate gives 0) or missing (only rollouts with an open gate are compared)"
            )
        if self.of not in get_args(Of):
            raise ConfigError(
                f"of of a gate on {self.on!r} is {self.of!r}: write rollout (its own reward is "
                "tested) or group (the mean of the reward over the group is tested)"
            )
        if not isfinite(self.at_least):
            raise ConfigError(
                f"at_least of a gate on {self.on!r} must be a finite number, got {self.at_least}"
            )


def apply_gates(
    rewards: Float[Any, "*batch reward"],
    names: Sequence[str],
    gates: Mapping[str, Gate],
    *,
    conditions: Float[Any, "... reward"] | None = None,
) -> Float[Any, "*batch reward"]:
    r"""Return the rewards with each gated reward set to 0, or to missing, where its gate is closed.

    $$ \tilde r_k = \begin{cases} r_k & r_l \ge t \\ 0 \text{ or NaN} & \text{else} \end{cases} $$

    This 0 counts in the group like any other value, so the gated reward also rewards meeting the
    condition. If the lowest value of a reward is not 0, shift its range first: otherwise a closed
    gate does not give the lowest value.

    With `otherwise="missing"` (conditional normalization), the reward is normalized among the
    rollouts with an open gate, and adds nothing to the others. It does not reward meeting the
    condition, and has no effect in a group with a single open gate.

    A gate uses the raw score of the reward `on`, even if that reward is gated as well. If the raw
    score is missing (NaN), so is the gated reward. A gated reward that does not apply stays
    missing.

    With `of="group"`, $r_l$ is the mean of the reward over the rollouts of the group to which it
    applies.

    Args:
        rewards: Raw rewards, with the reward axis last. NaN: the reward does not apply. A gate on
            the mean of a group needs `[prompt, sample, ..., reward]`.
        names: Names of the rewards.
        gates: Gates, keyed by the name of the gated reward.
        conditions: Rewards to compare with the thresholds, in a shape that broadcasts against
            `rewards`: the totals, if `rewards` are of turns. None: `rewards`.

    Returns:
        A new array of the same shape, library and dtype.

    Raises:
        ConfigError: If a gate refers to an unknown reward, a reward is gated on itself, or a gate
            needs the mean of a group and the array has no axis of the samples.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 8.
        Tan et al. 2026, "PAPO", https://arxiv.org/abs/2603.26535, for `otherwise="missing"`.

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[1.0, 1.0], [0.0, 1.0]]])  # correct, short
        >>> apply_gates(r, ["correct", "short"], {"short": Gate("correct", at_least=1)})
        array([[[1., 1.],
                [0., 0.]]])
    """
    check_gates(names, gates, grouped=rewards.ndim > 2)
    xp = array_namespace(rewards)
    columns = [rewards[..., k] for k in range(len(names))]
    tested = rewards if conditions is None else conditions
    for name, gate in gates.items():
        k, condition = names.index(name), _condition(tested, names, gate)
        closed = xp.full_like(condition, 0.0 if gate.otherwise == "zero" else nan)
        closed_to = xp.where(xp.isnan(condition), condition, closed)
        kept = (condition >= gate.at_least) | xp.isnan(columns[k])
        columns[k] = xp.where(kept, columns[k], closed_to)
    return xp.stack(columns, axis=-1)


def closed_gates(
    rewards: Float[Any, "*batch reward"], names: Sequence[str], gates: Mapping[str, Gate]
) -> dict[str, float]:
    """Return the share of rollouts with a closed gate for each gated reward.

    The arguments are those of `apply_gates`, with the raw rewards. Rollouts for which the tested
    reward is missing (NaN) are not counted.
    """
    xp = array_namespace(rewards)
    shares: dict[str, float] = {}
    for name, gate in gates.items():
        condition = _condition(rewards, names, gate)
        known: Bool[Any, "*batch"] = ~xp.isnan(condition)
        closed = condition < gate.at_least  # False for NaN
        count = int(xp.sum(xp.astype(known, xp.int64)))
        shares[name] = int(xp.sum(xp.astype(closed, xp.int64))) / count if count else 0.0
    return shares


def _condition(rewards: Float[Any, "... reward"], names: Sequence[str], gate: Gate) -> Any:
    """Return the values that a gate tests, with one value per group for the mean of the group."""
    values = rewards[..., names.index(gate.on)]
    return mean(values, over=1) if gate.of == "group" else values


def check_gates(names: Sequence[str], gates: Mapping[str, Gate], *, grouped: bool = True) -> None:
    """Raise a ConfigError unless every gate can be applied.

    A gate refers to two different rewards in `names`. Its condition may be the mean of a group only
    if rewards are `grouped`: known for all rollouts of a prompt at once.
    """
    for name, gate in gates.items():
        what = f"the gate of reward {name!r} refers to an unknown reward"
        refuse_unknown((name, gate.on), names, what)
        if name == gate.on:
            raise ConfigError(f"reward {name!r} is gated on itself. Set `on` to another reward")
        if gate.of == "group" and not grouped:
            raise ConfigError(
                f"the gate of reward {name!r} is `of: group`, but rollouts are scored here without "
                f"the others of their prompt, so the mean of {gate.on!r} is not known. Set `of: "
                "rollout`, or use GDPOTrainer or apply_gates on rewards[prompt, sample, reward]"
            )


def declared_ranges(
    rewards: Sequence[Any], gates: Mapping[str, Gate]
) -> tuple[list[float], list[float]]:
    """Return the lowest and the highest values of the rewards. NaN: no range is declared.

    Only `Reward` and `DeclaredRange` objects declare a range. The range of a reward whose closed
    gate gives 0 includes 0.
    """
    gated = [name for name, gate in gates.items() if gate.otherwise == "zero"]
    lowest, highest = list[float](), list[float]()
    for reward in rewards:
        low, high = nan, nan
        if isinstance(reward, Reward | DeclaredRange):
            low, high = reward.low, reward.high
            if reward.name in gated:
                low, high = min(0.0, low), max(0.0, high)
        lowest.append(low)
        highest.append(high)
    return lowest, highest


Range: TypeAlias = tuple[float, float]
"""Lowest and highest value of a reward."""


def describe_rewards(
    names: Sequence[str], low: Sequence[float], high: Sequence[float], gates: Mapping[str, Gate]
) -> dict[str, dict[str, Any]]:
    """Return the declared range and gate of each reward in JSON types, in the order of `names`.

    NaN bounds mean that the reward declares no range.
    """
    described: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, bottom, top in zip(names, low, high, strict=True):
        if isfinite(bottom) and isfinite(top):
            described[name] |= {"low": float(bottom), "high": float(top)}
        if name in gates:
            gate = gates[name]
            described[name]["gate"] = {"on": gate.on, "at_least": float(gate.at_least)}
            if gate.otherwise != "zero":
                described[name]["gate"]["otherwise"] = gate.otherwise
            if gate.of != "rollout":
                described[name]["gate"]["of"] = gate.of
    return described


def described_ranges(described: object) -> dict[str, Range | None]:
    """Return the range of each reward from the output of `describe_rewards`.

    The input comes from a file, so a missing or invalid range is returned as None.
    """
    found: dict[str, Range | None] = {}
    for name, entry in described.items() if isinstance(described, Mapping) else ():
        ends = [entry.get("low"), entry.get("high")] if isinstance(entry, Mapping) else []
        known = [float(e) for e in ends if isinstance(e, int | float) and abs(e) <= _LARGEST]
        is_range = len(known) == 2 and known[0] < known[1]
        found[str(name)] = (known[0], known[1]) if is_range else None
    return found


_LARGEST = 1e60
"""Largest absolute value that a bound may have, so that squares stay finite."""
