"""Reads an experiment from a folder: a comparison or runs."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from gdpo._files import read_json, write_json
from gdpo._shapes import Float
from gdpo.advantages import ESTIMATORS
from gdpo.advantages.schedules import read_schedule
from gdpo.errors import ConfigError, DataError
from gdpo.lab.experiments.threshold import REACHED, Curve
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.recipe import GateConfig, Recipe, differences
from gdpo.lab.recipes.yaml import spell_number
from gdpo.lab.runs.directory import RunDirectory, RunFacts, read_run
from gdpo.lab.runs.lock import is_locked
from gdpo.rewards.gates import Range


class Label(str):
    """Stores the name of a compared configuration, and its estimator.

    If the user gave no name, the label is an ordinary `str` that starts with the estimator.

    Examples:
        >>> Label("mine length.weight=0.5", "my_module:my_estimator").estimator
        'my_module:my_estimator'
    """

    estimator: str

    def __new__(cls, label: str, estimator: str) -> "Label":
        """Make a label that refers to an estimator."""
        made = super().__new__(cls, label)
        made.estimator = estimator
        return made

    def __reduce__(self) -> tuple[type["Label"], tuple[str, str]]:
        """Keep the estimator in copies and pickles."""
        return Label, (str(self), self.estimator)


def estimator_of(label: str) -> str:
    """Return the estimator that a label refers to.

    Examples:
        >>> estimator_of("gdpo length.weight=0.5")
        'gdpo'
    """
    return label.estimator if isinstance(label, Label) else label.partition(" ")[0]


def label_of(name: str, variant: str) -> str:
    """Return an estimator's label: its name and the variant, if any."""
    label = f"{name} {variant}".rstrip()
    return Label(label, name.estimator) if isinstance(name, Label) else label


def in_words(value: float | GateConfig | Mapping[str, Any] | None) -> str:
    """Return a weight, a schedule or a gate in the format of `--vary`."""
    if isinstance(value, GateConfig):
        return f"{{on: {value.on}, at_least: {spell_number(value.at_least)}}}"
    if isinstance(value, Mapping):
        return str(read_schedule("weight", value))
    return "null" if value is None else spell_number(value)


CurveField: TypeAlias = Literal["means", "lengths", "weights"]
"""Fields of `ComparedRun` with curves."""

State: TypeAlias = Literal["waiting", "running", "interrupted", "finished", "failed"]


OPEN: tuple[State, ...] = ("waiting", "running", "interrupted")
"""States of runs that have not ended. `gdpo compare` resumes interrupted runs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Describes a compared reward."""

    name: str
    low: float
    high: float
    weight: float | None
    """Weight of the reward. None: the labels have different weights."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """Stores one training run."""

    label: str
    seed: int
    path: Path
    """The run directory, which may not exist yet."""
    state: State
    why: str
    """Reason for the failure. Empty if the run has not failed."""
    means: Mapping[str, Curve]
    """For each reward, its mean over the rollouts of each finished step. NaN: the reward applied to
    no rollout, or the step was not logged."""
    lengths: Mapping[str, Curve] = field(default_factory=dict)
    """The `mean` and `max` length of the completions of each finished step, in tokens. Empty:
    lengths were not logged."""
    weights: Mapping[str, Curve] = field(default_factory=dict)
    """For each reward with a schedule, its weight in each finished step."""
    account: Mapping[str, Curve] = field(default_factory=dict)
    """What changed each reward in a window, at the step after it: `<reward>/by/<cause>`,
    `<reward>/rest` and `<reward>/measured`, in the reward's unit. NaN: no window, or its total does
    not agree with the measured change."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """The range of each reward. Empty: the run has not started."""

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return max((len(values) for values in self.means.values()), default=0)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Stores runs of several estimators with the same seeds and task."""

    name: str
    path: Path
    """The folder with the runs. For a single run, the run directory."""
    labels: tuple[str, ...]
    """Labels. A label is an estimator, or the user's name for an estimator, followed by the varied
    values (`gdpo length.weight=0.5`). The first label is the baseline."""
    seeds: tuple[int, ...]
    rewards: tuple[Measured, ...]
    total_steps: int
    """Number of steps per run."""
    runs: tuple[ComparedRun, ...]
    """One run per label and seed, grouped by label."""
    reach: float
    """Threshold for every reward, as a share of its range."""
    unlike: frozenset[tuple[str, str]] = frozenset()
    """Pairs of label and reward in which the reward's gate or options differ from those of the
    baseline. The means of these pairs measure something different and are not compared."""
    left_out: tuple[str, ...] = ()
    """Removed keys that have a value in a recipe. They are not read."""

    def runs_of(self, label: str) -> tuple[ComparedRun, ...]:
        """Return the runs of a label, one per seed."""
        return tuple(run for run in self.runs if run.label == label)

    def threshold(self, reward: Measured) -> float:
        """Return a reward's threshold, in its unit."""
        return reward.low + self.reach * (reward.high - reward.low)

    def curves(
        self, label: str, key: str, of: CurveField = "means"
    ) -> Float[np.ndarray, "seed step"]:
        """Return one curve of each run, such as the mean of a reward at each step.

        `key` is one of the field `of` of `ComparedRun`. NaN: no value at this step.
        """
        runs = self.runs_of(label)
        table = np.full((len(runs), self.total_steps), np.nan)
        for row, run in zip(table, runs, strict=True):
            values = getattr(run, of).get(key, ())[: self.total_steps]
            row[: len(values)] = values
        return table


COMPARISON_FILE = "comparison.json"
"""The file that marks a folder as a comparison and stores its plan."""

LOGS = "logs"
"""Folder with the output of a comparison's processes."""

_MAY_DIFFER = (
    "name",
    "runs_dir",
    "advantage",
    "trainer.seed",
    "trainer.data_seed",
    "trainer.run_name",
    "trainer.report_to",
    "trainer.logging_steps",
    "trainer.save_steps",
    "trainer.save_total_limit",
)
"""Recipe keys in which compared runs may differ."""

_LENGTHS = {"completions/mean_length": "mean", "completions/max_length": "max"}
"""Metrics with the lengths of a step's completions in tokens, and their names in `lengths`."""

_OF_THE_ACCOUNT = "account/"
"""Prefix of the metrics of the account."""

_OF_REWARDS = {"mean": "means", "weight": "weights"}
"""Metrics of a reward, and the fields of `ComparedRun` that they belong to."""

_LONGEST = 120
"""Maximum number of characters of a label to use in the name of a run's folder."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """Stores which runs a comparison trains."""

    recipe: str
    """The recipe that all runs share, as YAML."""
    labels: tuple[str, ...]
    """Labels to compare. The first label is the baseline."""
    seeds: tuple[int, ...]
    reach: float = REACHED
    varied: tuple[str, ...] = ()
    """Recipe keys whose values were varied."""

    def write(self, folder: Path) -> None:
        """Write the plan to a folder."""
        plain = {
            "recipe": self.recipe,
            "labels": self.labels,
            "estimators": {str(n): n.estimator for n in self.labels if isinstance(n, Label)},
            "seeds": self.seeds,
            "reach": self.reach,
            "varied": self.varied,
        }
        write_json(folder / COMPARISON_FILE, plain)


def read_plan(folder: Path) -> ComparisonPlan | None:
    """Return the plan of a comparison, or None if there is none.

    Raises:
        DataError: If the plan cannot be read.
    """
    file = folder / COMPARISON_FILE
    if not file.is_file():
        return None
    try:
        plain = read_json(file)
        if not isinstance(plain, dict):
            raise TypeError("it is not a JSON object")
        named = plain["estimators"]
        labels = tuple(
            Label(str(label), str(named[label])) if label in named else str(label)
            for label in _entries(plain, "labels")
        )
        seeds = tuple(map(int, _entries(plain, "seeds")))
        varied = tuple(map(str, plain["varied"]))
        return ComparisonPlan(str(plain["recipe"]), labels, seeds, float(plain["reach"]), varied)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. `gdpo compare` wrote this file: restore it, or "
            "move it away to read the folder as separate runs"
        ) from error


def _entries(plain: Mapping[str, Any], key: str) -> Sequence[Any]:
    entries = plain.get(key)
    if not isinstance(entries, list) or not entries:
        raise TypeError(f"{key!r} is missing or is not a non-empty list")
    return entries


def run_name(label: str, seed: int) -> str:
    """Return the name of a run's folder."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", label)
    if len(plain) > _LONGEST:
        plain = f"{plain[:_LONGEST]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return f"{plain}-seed-{seed}"


def failure_file(folder: Path, label: str, seed: int) -> Path:
    """Return the file that records why a run failed."""
    return folder / LOGS / f"{run_name(label, seed)}.failed.json"


def read_experiment(folder: Path) -> Experiment:
    """Read a comparison, a folder of run directories, or a single run directory.

    Without a plan, the label of a run is its estimator, and the weights and gates that differ
    between runs. GRPO is the baseline if any run uses it.

    Raises:
        DataError: If there is no run, the runs cannot be compared, or two runs have the same label
            and seed.
    """
    plan = read_plan(folder)
    if plan is not None:
        return _compared(folder, plan)
    if not folder.is_dir():
        raise ConfigError(f"folder {folder} does not exist. Check the path")
    paths = [folder] if _is_run(folder) else sorted(filter(_is_run, folder.iterdir()))
    if not paths:
        raise DataError(
            f"{folder} contains no runs: pass a run directory, a folder of run directories, or a "
            "folder written by gdpo compare"
        )
    left_out = set[str]()
    read = [read_recipe(path, left_out=left_out) for path in paths]
    own = _own(read)
    found = [read_run(RunDirectory(path)) for path in paths]
    recipes = [(_label_by_hand(r, facts, own), r) for r, facts in zip(read, found, strict=True)]
    runs: list[ComparedRun] = []
    seen: dict[tuple[str, int], Path] = {}
    for (label, recipe), facts in zip(recipes, found, strict=True):
        path = facts.run.path
        if (other := seen.setdefault((label, recipe.seed), path)) != path:
            raise DataError(
                f"{other} and {path} are both runs of {label} with seed {recipe.seed}. "
                "Move one of them to another folder"
            )
        runs.append(_compared_run(label, recipe.seed, path, facts))
    places = {
        # GRPO, then shipped estimators, then others. Larger weights come first.
        label: (
            [*ESTIMATORS, recipe.advantage].index(recipe.advantage),
            recipe.advantage,
            [-entry.factor for entry in recipe.rewards],
            label,
        )
        for label, recipe in recipes
    }
    labels = tuple(sorted(places, key=places.__getitem__))
    seeds = tuple(sorted({run.seed for run in runs}))
    ordered = tuple(sorted(runs, key=lambda run: (labels.index(run.label), run.seed)))
    varied = tuple(f"rewards.{place}.{key}" for place, key in own)
    plan = ComparisonPlan("", labels, seeds, varied=varied)
    return _experiment(folder, plan, ordered, recipes, left_out)


def _own(recipes: Sequence[Recipe]) -> list[tuple[int, str]]:
    """Return the index and key (weight or gate) of rewards that differ between recipes."""
    places = enumerate(zip(*(recipe.rewards for recipe in recipes), strict=False))
    return [
        (place, key)
        for place, entries in places
        for key in ("weight", "gate")
        if any(getattr(entry, key) != getattr(entries[0], key) for entry in entries)
    ]


def _label_by_hand(recipe: Recipe, facts: RunFacts, own: Sequence[tuple[int, str]]) -> str:
    """Return the label that `gdpo compare --vary` would give to a run started manually."""
    names = list(_ranges(facts))
    values = [
        f"{names[place]}.{key}={in_words(getattr(recipe.rewards[place], key))}"
        for place, key in own
        if place < len(names)
    ]
    return label_of(recipe.advantage, " ".join(values))


def _compared(folder: Path, plan: ComparisonPlan) -> Experiment:
    runs = tuple(
        _compared_run(label, seed, path, facts, failure_file(folder, label, seed))
        for label in plan.labels
        for seed in plan.seeds
        for path in [folder / run_name(label, seed)]
        for facts in [read_run(RunDirectory(path)) if _is_run(path) else None]
    )
    left_out = set[str]()
    recipes = [(run.label, read_recipe(run.path, left_out=left_out)) for run in runs if run.ranges]
    if not recipes:
        raise DataError(
            f"{folder}: none of this comparison's runs has started yet. Rerun the gdpo compare "
            "command to start the runs"
        )
    return _experiment(folder, plan, runs, recipes, left_out)


def _experiment(
    folder: Path,
    plan: ComparisonPlan,
    runs: tuple[ComparedRun, ...],
    recipes: Sequence[tuple[str, Recipe]],
    left_out: set[str],
) -> Experiment:
    """Build an experiment from all runs and from the labelled recipes of the started runs."""
    _refuse_different(folder, [recipe for _, recipe in recipes], plan.varied)
    planned = [recipe.trainer.get("max_steps", -1) for _, recipe in recipes]
    steps = [each for each in planned if isinstance(each, int)] + [run.steps for run in runs]
    rewards = _measured([recipe for _, recipe in recipes], runs)
    return Experiment(
        name=recipes[0][1].task,
        path=folder,
        labels=plan.labels,
        seeds=plan.seeds,
        rewards=rewards,
        total_steps=max(steps),
        runs=runs,
        reach=plan.reach,
        unlike=unlike(plan.labels, [reward.name for reward in rewards], dict(recipes)),
        left_out=tuple(sorted(left_out)),
    )


def _measured(recipes: Sequence[Recipe], runs: Sequence[ComparedRun]) -> tuple[Measured, ...]:
    """Return the rewards with ranges that are valid for all runs. A gate extends a range to 0."""
    begun = [run.ranges for run in runs if run.ranges]
    weights = (
        {None if isinstance(e.weight, dict) else e.weight for e in each}
        for each in zip(*(r.rewards for r in recipes), strict=False)
    )
    measured: list[Measured] = []
    for name, each in zip(begun[0], weights, strict=False):
        lows, highs = zip(*(ranges[name] for ranges in begun if name in ranges), strict=True)
        weight = each.pop() if len(each) == 1 else None
        measured.append(Measured(name, min(lows), max(highs), weight))
    return tuple(measured)


def unlike(
    labels: Sequence[str], names: Sequence[str], recipes: Mapping[str, Recipe]
) -> frozenset[tuple[str, str]]:
    """Return the pairs of label and reward whose gate or options differ from the baseline's.

    The baseline is the first label. `recipes` may lack labels without a run.
    """
    first = recipes.get(labels[0])
    if first is None:
        return frozenset()
    return frozenset(
        (label, name)
        for label, recipe in recipes.items()
        for name, ours, theirs in zip(names, recipe.rewards, first.rewards, strict=False)
        if (ours.name, ours.gate, ours.options) != (theirs.name, theirs.gate, theirs.options)
    )


def _compared_run(
    label: str, seed: int, path: Path, facts: RunFacts | None, failed: Path | None = None
) -> ComparedRun:
    """Return a run from its facts, or without them if it has not started."""
    state, why = state_of(facts, failed)
    if facts is None:
        return ComparedRun(label, seed, path, state, why, {})
    fields = _curves(facts.steps)
    return ComparedRun(label, seed, path, state, why, **fields, ranges=_ranges(facts))


def _ranges(facts: RunFacts) -> dict[str, Range]:
    """Return the ranges of a run's rewards in order, or raise a DataError."""
    known = {name: each for name, each in facts.ranges.items() if each is not None}
    if not known or len(known) < len(facts.ranges):
        raise DataError(
            f"{facts.run.environment} does not have the range of each reward, which every run of "
            "gdpo stores under `rewards`. Restore the file"
        )
    return known


def state_of(facts: RunFacts | None, failed: Path | None) -> tuple[State, str]:
    """Return the state of a run, and why it failed. `failed` is its `failure_file`.

    `facts` is None for a run that has not started.
    """
    if facts is not None and is_locked(facts.run.path):
        return "running", ""
    if facts is not None and facts.finished:
        return "finished", ""
    if failed is not None and failed.is_file():
        try:
            return "failed", str(read_json(failed)["why"])
        except (OSError, ValueError, KeyError, TypeError):
            return "failed", f"{failed} cannot be read"
    return ("waiting" if facts is None else "interrupted"), ""


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of `ComparedRun` from metrics, with NaN for steps without a log."""
    rows = [row for row in rows if isinstance(row.get("step"), int) and row["step"] > 0]
    count = max((row["step"] for row in rows), default=0)
    fields: dict[str, dict[str, Curve]] = {
        kind: {} for kind in (*_OF_REWARDS.values(), "lengths", "account")
    }
    for row in rows:
        for key, value in row.items():
            kind, name = _field_of(key)
            if not kind:
                continue
            curve = fields[kind].setdefault(name, np.full(count, np.nan))
            if isinstance(value, int | float):
                curve[row["step"] - 1] = value
    return fields


def _field_of(metric: str) -> tuple[str, str]:
    """Return the field of `ComparedRun` for a metric, and the key in this field, or ""."""
    if metric in _LENGTHS:
        return "lengths", _LENGTHS[metric]
    if metric.startswith(_OF_THE_ACCOUNT):
        return "account", metric.removeprefix(_OF_THE_ACCOUNT)
    name, _, what = metric.removeprefix("rewards/").rpartition("/")
    kind = _OF_REWARDS.get(what, "") if metric.startswith("rewards/") and name else ""
    return kind, name


def _is_run(path: Path) -> bool:
    run = RunDirectory(path)
    return run.recipe.is_file() and run.environment.is_file()


def may_differ(key: str) -> bool:
    """Return whether compared runs may differ in this recipe key."""
    return key in _MAY_DIFFER or key.split(".")[0] == "advantage_options"


def _refuse_different(folder: Path, recipes: Sequence[Recipe], varied: Sequence[str]) -> None:
    """Raise DataError if runs differ in anything but estimator, seed and logging settings."""
    first = recipes[0]
    for other in recipes[1:]:
        changed = {
            key: values
            for key, values in differences(first, other).items()
            if not may_differ(key) and not any(f"{key}.".startswith(f"{own}.") for own in varied)
        }
        if changed:
            shown = "; ".join(f"{key} is {a!r} and {b!r}" for key, (a, b) in changed.items())
            raise DataError(
                f"{folder}: the runs {first.name} and {other.name} cannot be compared, because "
                f"they differ in more than estimator and seed: {shown}. Move them to "
                "separate folders"
            )
