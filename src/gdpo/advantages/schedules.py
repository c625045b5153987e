"""Changes weights during a run, by step or after a reward has reached a mean."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo.advantages._types import Number, Rewards
from gdpo.advantages.arrays import as_numpy, number
from gdpo.errors import ConfigError, check_whole

FORMS = (
    "{from: 1.0, to: 0.2, steps: 200} or {after: {reward: format, mean_at_least: 0.95}, value: 0.2}"
)

_LEAST_GROUPS = 64
"""Minimum number of groups for a decision about a mean, because the mean of fewer is noisy."""


@dataclass(frozen=True, slots=True)
class Linear:
    """Changes a factor linearly over some steps, and then keeps the end value."""

    start: Number
    end: Number
    steps: int

    def at(self, step: int) -> float:
        """Return the factor of a step (the first is 0)."""
        done = min(step / self.steps, 1.0)
        return self.start + (self.end - self.start) * done if done < 1 else float(self.end)

    def __str__(self) -> str:
        """Return the schedule in words."""
        return f"{self.start:g} → {self.end:g} over {self.steps:,} steps"


@dataclass(frozen=True, slots=True)
class After:
    """Changes a factor once, after the mean of a reward has reached a value."""

    start: Number
    end: Number
    reward: str
    at_least: Number

    def __str__(self) -> str:
        """Return the schedule in words."""
        return f"{self.start:g}, {self.end:g} after mean {self.reward} ≥ {self.at_least:g}"


class _RecentMean:
    """Stores the most recent batches that together contain `_LEAST_GROUPS` groups with a reward."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, float]] = deque()  # groups, values, sum of the values

    @property
    def value(self) -> float | None:
        if sum(groups for groups, _, _ in self._batches) < _LEAST_GROUPS:
            return None
        return sum(total for _, _, total in self._batches) / sum(n for _, n, _ in self._batches)

    def add(self, values: Float[np.ndarray, "prompt sample"]) -> None:
        there = ~np.isnan(values)
        groups = int(np.sum(np.any(there, axis=1)))
        if not groups:
            return
        self._batches.append((groups, int(np.sum(there)), float(np.sum(values[there]))))
        while sum(n for n, _, _ in self._batches) - self._batches[0][0] >= _LEAST_GROUPS:
            self._batches.popleft()

    def state(self) -> list[list[float | int]]:
        return [list(batch) for batch in self._batches]

    def restore(self, state: Sequence[Sequence[float | int]]) -> None:
        self._batches = deque((int(g), int(n), float(total)) for g, n, total in state)


class Schedules:
    """Stores the schedules of a run and computes the factor of each reward's weight.

    A step is one call of `update`. A condition uses the reward's mean over the most recent batches
    with 64 groups that have it; once met, it stays met. One that is always or never met within the
    declared range is refused.
    """

    def __init__(
        self,
        names: Sequence[str],
        given: Any,
        *,
        low: Sequence[Number] | None,
        high: Sequence[Number] | None,
    ) -> None:
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(f"schedules must map reward names to schedules, got {given!r}")
        self._names = tuple(names)
        self._schedules: dict[str, Linear | After] = {}
        refuse_unknown(given, names, "schedules: unknown reward")
        for name, each in given.items():
            schedule = read_schedule(f"schedules: {name}", each)
            if isinstance(schedule, After):
                where = f"schedules: {name}: after: unknown reward"
                refuse_unknown([schedule.reward], names, where)
                k, of, at_least = names.index(schedule.reward), schedule.reward, schedule.at_least
                least = -inf if low is None else low[k]
                most = inf if high is None else high[k]
                if at_least <= least or at_least > most:
                    raise ConfigError(
                        f"schedules: {name}: the mean of {of} is "
                        f"{'always' if at_least <= least else 'never'} at least {at_least:g}, "
                        f"because {of} ranges from {least:g} to {most:g}. Set mean_at_least to a "
                        f"value above {least:g}, at most {most:g}"
                    )
            self._schedules[name] = schedule
        self._step = 0
        self._met: set[str] = set()
        watched = {s.reward for s in self._schedules.values() if isinstance(s, After)}
        self._means = {name: _RecentMean() for name in names if name in watched}

    @property
    def changing(self) -> list[bool]:
        """Return, for each reward, whether it has a schedule."""
        return [name in self._schedules for name in self._names]

    @property
    def factors(self) -> list[float]:
        """Return the current factor of each reward's weight."""
        return [self._factor(name) for name in self._names]

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Return the smallest and the largest factor of each reward's weight."""
        ends = [(s.start, s.end) if (s := self._schedules.get(n)) else (1, 1) for n in self._names]
        return [(float(min(pair)), float(max(pair))) for pair in ends]

    def update(self, rewards: Rewards) -> None:
        """Count a batch, `[prompt, sample, reward]`, and test the conditions."""
        self._step += 1
        if self._means:
            values = as_numpy(rewards).astype(np.float64)
            for name, mean in self._means.items():
                mean.add(values[:, :, self._names.index(name)])
        for name, schedule in self._schedules.items():
            if isinstance(schedule, After):
                reached = self._means[schedule.reward].value
                if reached is not None and reached >= schedule.at_least:
                    self._met.add(name)

    def state(self) -> dict[str, Any]:
        """Return the step, the conditions that were met and the means in JSON types."""
        means = {name: mean.state() for name, mean in self._means.items()}
        return {"schedules": {"step": self._step, "met": sorted(self._met), "means": means}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state` returned."""
        try:
            saved = state["schedules"]
            for name, mean in self._means.items():
                mean.restore(saved["means"][name])
            self._step, self._met = int(saved["step"]), set(saved["met"])
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the saved state does not fit the schedules of this run ({type(error).__name__}: "
                f"{error}): resume with the same rewards and options"
            ) from error

    def _factor(self, name: str) -> float:
        schedule = self._schedules.get(name)
        if isinstance(schedule, Linear):
            return schedule.at(self._step)
        if isinstance(schedule, After):
            return float(schedule.end if name in self._met else schedule.start)
        return 1.0


def read_schedule(place: str, given: Any) -> Linear | After:
    """Return the schedule in a configuration. `place` names the schedule in messages."""
    fields = dict(given) if isinstance(given, Mapping) else {}
    refuse_unknown(fields, ("from", "to", "steps", "after", "value"), f"{place}: unknown key")
    start = _finite(f"{place}: from", fields.pop("from", 1.0))
    if set(fields) == {"to", "steps"}:
        steps = fields["steps"]
        check_whole(f"{place}: steps", steps, least=1)
        end = _finite(f"{place}: to", fields["to"])
        _finite(f"{place}: to - from", float(end) - float(start))
        _refuse_same(f"{place}: from and to", start, end)
        return Linear(start, end, steps)
    if set(fields) == {"after", "value"}:
        given_after = fields["after"]
        after = given_after if isinstance(given_after, Mapping) else {}
        refuse_unknown(after, ("reward", "mean_at_least"), f"{place}: after: unknown key")
        reward = after.get("reward")
        if "mean_at_least" not in after or not isinstance(reward, str):
            raise ConfigError(f"{place}: after is {given_after!r}: write {FORMS}")
        at_least = _finite(f"{place}: mean_at_least", after["mean_at_least"])
        _refuse_same(f"{place}: from and value", start, _finite(f"{place}: value", fields["value"]))
        return After(start, fields["value"], reward, at_least)
    raise ConfigError(f"{place} is {given!r}: write {FORMS}")


def _refuse_same(fields: str, start: Number, end: Number) -> None:
    if start == end:
        raise ConfigError(
            f"{fields} are both {end:g} (the default of from is 1), so the weight never changes: "
            "write two different numbers, or remove the schedule and change the weight itself"
        )


def _finite(name: str, value: Any) -> Number:
    if not -inf < number(name, value) < inf:
        raise ConfigError(f"{name} must be a finite number, got {value}")
    return value
