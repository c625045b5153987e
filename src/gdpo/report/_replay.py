"""Every recorded step under the estimators of all arms: who would have got which advantage.

Only gdpo's own estimators are called. A user's own is code that a run names, and a report runs
none: it is shown with the advantages that its own runs recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np
from jaxtyping import Bool, Float

from gdpo.advantages import ESTIMATORS, AdvantageRule
from gdpo.analysis.replay import Tally, call_rule, disagreement, make_rule
from gdpo.errors import GdpoError
from gdpo.experiments.grid import estimator_of
from gdpo.experiments.reading import Experiment, Run
from gdpo.recipes.read import read_recipe
from gdpo.report._record import Step, evenly, read_step, step_files
from gdpo.runs.directory import RunDirectory

_STEPS = 200
"""Of each run, at most; of longer runs so many are looked at, evenly."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step of a run, and the advantages that its rollouts get under every estimator."""

    run: Run
    step: Step
    advantages: Float[np.ndarray, "estimator prompt sample"]
    """NaN: the estimator could not be called, or is a user's own, and the step another arm's."""
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
    """Of the arms, each set of options once; GRPO or GDPO beside a single one. An
    arm's name stands for the estimator with the arm's options, where there are several."""
    steps: tuple[Replayed, ...]
    """Run by run."""
    recorded_steps: int
    """All, looked at or not."""
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why an estimator could not be called, by its name."""
    of_arm: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which of the estimators an arm's runs trained with."""

    @property
    def not_called(self) -> tuple[str, ...]:
        """Estimators of users' own, of which the recorded advantages are shown."""
        return tuple(name for name in self.estimators if estimator_of(name) not in ESTIMATORS)

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
    """Largest difference from what this arm's own runs recorded; NaN: there are none, or it was
    not called."""


def replay(experiment: Experiment) -> Replay:
    """Give every recorded step to every estimator, whole, with the options of its arm.

    The weights are those that the step was recorded with: arms that differ in nothing else are one
    estimator here.

    Raises:
        DataError: A rollout file cannot be read.
    """
    problems: dict[str, str] = {}
    options, of_arm = _players(experiment, problems)
    if len(options) == 1:
        options["gdpo" if "grpo" in options else "grpo"] = {}
    steps: list[Replayed] = []
    recorded = 0
    for run in experiment.runs:
        files = step_files(run.path)
        recorded += len(files)
        read = [s for file in evenly(files, _STEPS) if (s := read_step(file)) is not None]
        steps += _replay_run(experiment, run, read, of_arm[run.arm], options, problems)
    return Replay(tuple(options), tuple(steps), recorded, problems, of_arm)


def agreements(replayed: Replay) -> list[Agreement]:
    """Each estimator beside the first, over all rollouts that were looked at."""
    if not replayed.steps:
        return []
    return [
        _agreement(replayed, place)
        for place, name in enumerate(replayed.estimators)
        if name not in replayed.problems
    ]


def _agreement(replayed: Replay, place: int) -> Agreement:
    tally = Tally()
    for step in replayed.steps:
        first, here = (step.advantages[i][step.there] for i in (0, place))
        if not np.any(np.isnan(first) | np.isnan(here)):
            tally.add(first, here)
    return Agreement(
        estimator=replayed.estimators[place],
        correlation=tally.correlation,
        opposite=tally.opposite,
        zero=tally.zero,
        off=_off(replayed, place),
    )


def _players(
    experiment: Experiment, problems: dict[str, str]
) -> tuple[dict[str, Mapping[str, object]], dict[str, str]]:
    """The options of each estimator, by its name, and the name of that of each arm."""
    options: dict[str, Mapping[str, object]] = {}
    of_arm: dict[str, str] = {}
    for arm in experiment.arms:
        estimator = estimator_of(arm)
        given = _options(experiment.runs_of(arm), estimator, problems)
        alike = (n for n, o in options.items() if (estimator_of(n), o) == (estimator, given))
        of_arm[arm] = next(alike, arm if estimator in options else estimator)
        options.setdefault(of_arm[arm], given)
    return options, of_arm


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
    own: str,
    options: Mapping[str, Mapping[str, object]],
    problems: dict[str, str],
) -> list[Replayed]:
    if not steps:
        return []
    low = {reward.name: reward.low for reward in experiment.rewards}
    high = {reward.name: reward.high for reward in experiment.rewards}
    rules = {
        name: make_rule(estimator_of(name), steps[0].names, given, problems, low=low, high=high)
        for name, given in options.items()
        if estimator_of(name) in ESTIMATORS
    }

    def advantages_of(name: str, step: Step) -> Float[np.ndarray, "prompt sample"]:
        if name not in rules:
            return step.advantages if name == own else np.full(step.advantages.shape, nan)
        return _call(rules[name], name, step, problems)

    return [
        Replayed(run, step, advantages, disagreement(advantages, step.rows >= 0))
        for step in steps
        for advantages in [np.stack([advantages_of(name, step) for name in options])]
    ]


def _call(
    rule: AdvantageRule | None, name: str, step: Step, problems: dict[str, str]
) -> Float[np.ndarray, "prompt sample"]:
    return call_rule(
        rule, name, step.rewards, step.weights, problems, token_counts=step.token_counts
    )


def _off(replayed: Replay, place: int) -> float:
    """How far the replay is from the record, where both are of the same estimator."""
    name = replayed.estimators[place]
    if name in replayed.not_called:
        return nan
    own = [r for r in replayed.steps if replayed.of_arm[r.run.arm] == name]
    return max(
        (float(np.max(np.abs(r.advantages[place] - r.step.advantages))) for r in own), default=nan
    )
