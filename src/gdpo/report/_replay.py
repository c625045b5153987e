"""Every recorded step under every arm's estimator: who would have got which advantage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
from jaxtyping import Bool, Float

from gdpo.advantages import AdvantageRule
from gdpo.errors import GdpoError
from gdpo.experiments import Experiment, Run
from gdpo.report._record import Step, evenly, read_step, step_files
from gdpo.training import RunDirectory, read_recipe

_STEPS = 200
"""Of each run, at most; of longer runs so many are looked at, evenly."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of a run, and the advantages that its rollouts get under every estimator."""

    run: Run
    step: Step
    advantages: Float[np.ndarray, "estimator prompt sample"]
    """NaN: the estimator could not be called."""
    disagreement: Float[np.ndarray, "prompt sample"]
    """Between the estimators: the range of the advantages, each estimator's divided by their root
    mean square over the step, since an optimizer like Adam is blind to their size."""

    @property
    def there(self) -> Bool[np.ndarray, "prompt sample"]:
        """Where there is a rollout."""
        return self.step.rows >= 0


@dataclass(frozen=True, slots=True)
class Replay:
    """All that was recorded and looked at."""

    estimators: tuple[str, ...]
    """Those of the arms; of a single arm, GRPO or GDPO beside it."""
    steps: tuple[Replayed, ...]
    """Run by run."""
    recorded_steps: int
    """All, looked at or not."""
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why an estimator could not be called, by its name."""

    @property
    def rollouts(self) -> int:
        """How many were looked at."""
        return sum(replayed.step.rollouts for replayed in self.steps)

    def of_run(self, run: Run) -> tuple[Replayed, ...]:
        """The steps of a run."""
        return tuple(replayed for replayed in self.steps if replayed.run is run)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an estimator's advantages go with those of the first one, on the same rollouts."""

    estimator: str
    correlation: float
    opposite: float
    """Share of rollouts whose advantage has the opposite sign."""
    zero: float
    """Share of rollouts whose advantage is exactly 0."""
    off: float
    """Largest difference from what this arm's own runs recorded; NaN: there are none."""


def replay(experiment: Experiment) -> Replay:
    """Give every recorded step to every estimator, whole, with the options of its arm.

    Raises:
        DataError: A rollout file cannot be read.
    """
    estimators = experiment.arms
    if len(estimators) == 1:
        estimators = (*estimators, "gdpo" if estimators[0] == "grpo" else "grpo")
    problems: dict[str, str] = {}
    options = {name: _options(experiment.runs_of(name), name, problems) for name in estimators}
    steps: list[Replayed] = []
    recorded = 0
    for run in experiment.runs:
        files = step_files(run.path)
        recorded += len(files)
        read = [s for file in evenly(files, _STEPS) if (s := read_step(file)) is not None]
        steps += _replay_run(experiment, run, read, options, problems)
    return Replay(estimators, tuple(steps), recorded, problems)


def agreements(replayed: Replay) -> list[Agreement]:
    """Each estimator beside the first, over all rollouts that were looked at."""
    if not replayed.steps:
        return []
    columns = np.concatenate([r.advantages[:, r.there] for r in replayed.steps], axis=1)
    return [
        Agreement(
            estimator=name,
            correlation=_correlation(columns[0], column),
            opposite=_opposite(columns[0], column),
            zero=float(np.mean(column == 0)),
            off=_off(replayed, place),
        )
        for place, (name, column) in enumerate(zip(replayed.estimators, columns, strict=True))
        if name not in replayed.problems
    ]


def _options(runs: Sequence[Run], name: str, problems: dict[str, str]) -> Mapping[str, object]:
    """Of an arm, as its runs' recipes have them."""
    recipes = [path for run in runs if (path := RunDirectory(run.path).recipe).is_file()]
    try:
        return read_recipe(recipes[0]).advantage_options if recipes else {}
    except GdpoError as error:
        problems[name] = str(error)
        return {}


def _replay_run(
    experiment: Experiment,
    run: Run,
    steps: Sequence[Step],
    options: Mapping[str, Mapping[str, object]],
    problems: dict[str, str],
) -> list[Replayed]:
    if not steps:
        return []
    rules = {name: _rule(experiment, name, steps[0].names, options, problems) for name in options}
    return [
        Replayed(run, step, advantages, _disagreement(advantages, step.rows >= 0))
        for step in steps
        for advantages in [np.stack([_call(rules[n], n, step, problems) for n in options])]
    ]


def _rule(
    experiment: Experiment,
    name: str,
    rewards: Sequence[str],
    options: Mapping[str, Mapping[str, object]],
    problems: dict[str, str],
) -> AdvantageRule | None:
    low = {reward.name: reward.low for reward in experiment.rewards}
    high = {reward.name: reward.high for reward in experiment.rewards}
    try:
        return AdvantageRule(
            name,
            rewards,
            options[name],
            low=[low.get(reward, nan) for reward in rewards],
            high=[high.get(reward, nan) for reward in rewards],
        )
    except GdpoError as error:
        problems.setdefault(name, str(error))
        return None


def _call(
    rule: AdvantageRule | None, name: str, step: Step, problems: dict[str, str]
) -> Float[np.ndarray, "prompt sample"]:
    """The advantages of a step; a rule with state goes on from step to step, as in training."""
    if rule is not None and name not in problems:
        try:
            found = rule(step.rewards, np.array(step.weights), token_counts=step.token_counts)
            rule.update(step.rewards)
        except Exception as error:  # noqa: BLE001 (users' estimators; the page tells)
            problems.setdefault(name, f"{type(error).__name__}: {error}")
        else:
            return np.asarray(found, dtype=np.float64)
    return np.full(step.rows.shape, nan)


def _disagreement(
    advantages: Float[np.ndarray, "estimator prompt sample"],
    there: Bool[np.ndarray, "prompt sample"],
) -> Float[np.ndarray, "prompt sample"]:
    known = [a for a in advantages if not np.any(np.isnan(a))]
    if len(known) < 2:
        return np.zeros(there.shape)
    scales = [np.sqrt(np.mean(a[there] ** 2)) for a in known]
    scaled = [a / scale if scale > 0 else a for a, scale in zip(known, scales, strict=True)]
    return np.ptp(np.stack(scaled), axis=0)


def _correlation(a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]) -> float:
    if np.any(np.isnan(a)) or np.any(np.isnan(b)) or np.ptp(a) == 0 or np.ptp(b) == 0:
        return nan
    return float(np.corrcoef(a, b)[0, 1])


def _opposite(a: Float[np.ndarray, " rollout"], b: Float[np.ndarray, " rollout"]) -> float:
    return nan if np.any(np.isnan(a)) else float(np.mean(a * b < 0))


def _off(replayed: Replay, place: int) -> float:
    """How far the replay is from the record, where both are of the same estimator."""
    own = [r for r in replayed.steps if r.run.arm == replayed.estimators[place]]
    return max(
        (float(np.max(np.abs(r.advantages[place] - r.step.advantages))) for r in own), default=nan
    )
