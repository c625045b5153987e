"""Reads an experiment from its folder: a comparison, a folder of runs, or one run."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo._files import to_json, write_whole
from gdpo.advantages import ESTIMATORS
from gdpo.errors import ConfigError, DataError
from gdpo.experiments.threshold import REACHED
from gdpo.recipes.read import read_recipe
from gdpo.recipes.recipe import GateConfig, Recipe, differences
from gdpo.recipes.yaml import spell_number
from gdpo.runs.directory import RunDirectory
from gdpo.runs.lock import is_locked


def label_of(estimator: str, variant: str) -> str:
    """What an estimator is called: its estimator, and its variant where there is one."""
    return f"{estimator} {variant}".rstrip()


def in_words(value: float | GateConfig | None) -> str:
    """A weight or a gate as `--vary` takes it."""
    if isinstance(value, GateConfig):
        return f"{{on: {value.on}, at_least: {spell_number(value.at_least)}}}"
    return "null" if value is None else spell_number(value)


State: TypeAlias = Literal["waiting", "running", "interrupted", "finished", "failed"]


OPEN: tuple[State, ...] = ("waiting", "running", "interrupted")
"""States of runs that are not done: an interrupted one goes on when `gdpo compare` does."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A reward that is compared."""

    name: str
    low: float
    high: float
    weight: float | None
    """None: the estimators have different ones."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: an estimator with a seed."""

    label: str
    seed: int
    path: Path
    """Its run directory, which need not be there yet."""
    state: State
    why: str
    """Why it failed; empty otherwise."""
    means: Mapping[str, Float[np.ndarray, " step"]]
    """By reward: its mean over the rollouts of each step so far. NaN: it applied to none."""
    lengths: Mapping[str, Float[np.ndarray, " step"]] = field(
        default_factory=dict[str, Float[np.ndarray, " step"]]
    )
    """`mean` and `max`: tokens of the completions of each step so far. Empty: not logged."""

    @property
    def steps(self) -> int:
        """Steps so far."""
        return max((len(values) for values in self.means.values()), default=0)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Estimators that were trained with the same seeds on the same task."""

    name: str
    path: Path
    """The folder that holds the runs; of a single run, the run directory."""
    labels: tuple[str, ...]
    """Estimators, with the values that are their own (`gdpo length.weight=0.5`); the first is what
    the others are compared with."""
    seeds: tuple[int, ...]
    rewards: tuple[Measured, ...]
    total_steps: int
    """Of each run."""
    runs: tuple[Run, ...]
    """One per estimator and seed, estimator by estimator."""
    reach: float
    """Share of a reward's range whose first crossing is timed."""
    unlike: frozenset[tuple[str, str]] = frozenset()
    """Estimators and rewards with another gate or other options than in the first estimator: their means are of
    something else, and are not compared."""

    def runs_of(self, label: str) -> tuple[Run, ...]:
        """The runs of an estimator, seed by seed."""
        return tuple(run for run in self.runs if run.label == label)

    def curves(self, label: str, reward: str) -> Float[np.ndarray, "seed step"]:
        """The mean reward of each step, a row per seed; NaN where a run has not come so far."""
        return self._table([run.means.get(reward) for run in self.runs_of(label)])

    def lengths(self, label: str, figure: str) -> Float[np.ndarray, "seed step"]:
        """Likewise the `mean` or `max` of the completions' lengths, in tokens."""
        return self._table([run.lengths.get(figure) for run in self.runs_of(label)])

    def _table(
        self, curves: Sequence[Float[np.ndarray, " step"] | None]
    ) -> Float[np.ndarray, "seed step"]:
        table = np.full((len(curves), self.total_steps), np.nan)
        for row, curve in zip(table, curves, strict=True):
            values = np.empty(0) if curve is None else curve[: self.total_steps]
            row[: len(values)] = values
        return table


_Curve: TypeAlias = Float[np.ndarray, " step"]

COMPARISON_FILE = "comparison.json"
"""What marks a folder as a comparison."""

LOGS = "logs"
"""Folder of what the processes of a comparison printed."""

_MAY_DIFFER = (
    "name",
    "runs_dir",
    "advantage",
    *(
        f"trainer.{key}"
        for key in (
            "seed",
            "data_seed",
            "run_name",
            "report_to",
            "logging_steps",
            "save_steps",
            "save_total_limit",
        )
    ),
)
"""Keys of recipes that may be others in runs that are compared."""

_LENGTHS = {"completions/mean_length": "mean", "completions/max_length": "max"}
"""Of the completions of a step, in tokens, as metrics call them."""

_LONGEST = 120
"""Characters of an estimator that its folder's name has, at most."""

_DEFAULT_SEED = 42
"""TRL's, where a recipe names none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a comparison consists of."""

    recipe: str
    """The recipe that all runs share, as YAML."""
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    reach: float = REACHED
    varied: tuple[str, ...] = ()
    """Keys of the recipe that estimators have values of their own for."""

    def write(self, folder: Path) -> None:
        """Keep it in the comparison's folder."""
        plain = {
            "recipe": self.recipe,
            "labels": self.labels,
            "seeds": self.seeds,
            "reach": self.reach,
            "varied": self.varied,
        }
        write_whole(folder / COMPARISON_FILE, to_json(plain, indent=2))


def read_plan(folder: Path) -> Plan | None:
    """The plan of a comparison; None where the folder holds none.

    Raises:
        DataError: It cannot be read.
    """
    file = folder / COMPARISON_FILE
    if not file.is_file():
        return None
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        labels, seeds = tuple(map(str, plain["labels"])), tuple(map(int, plain["seeds"]))
        varied = tuple(map(str, plain.get("varied", ())))
        return Plan(str(plain["recipe"]), labels, seeds, float(plain["reach"]), varied)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read: {error}. It is written by gdpo compare") from error


def run_name(label: str, seed: int) -> str:
    """The folder of a run in its comparison."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", label)
    if len(plain) > _LONGEST:
        plain = f"{plain[:_LONGEST]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return f"{plain}-seed-{seed}"


def failure_file(folder: Path, label: str, seed: int) -> Path:
    """Where it is kept that, and why, a run of a comparison failed."""
    return folder / LOGS / f"{run_name(label, seed)}.failed.json"


def read_experiment(folder: Path) -> Experiment:
    """What lies in a folder: a comparison, several run directories, or one.

    Without a comparison's plan the estimators are the runs' estimators, GRPO being the first, with the
    weights and gates of rewards that not all of the runs have.

    Raises:
        DataError: There is no run, or the runs do not reward the same.
    """
    plan = read_plan(folder)
    if plan is not None:
        return _compared(folder, plan)
    paths = [folder] if _is_run(folder) else sorted(p for p in _folders(folder) if _is_run(p))
    if not paths:
        raise DataError(
            f"{folder} holds no run: give a run directory, a folder of them, or one that gdpo "
            "compare has made"
        )
    found = [(read_recipe(RunDirectory(path).recipe), path) for path in paths]
    own = _own([recipe for recipe, _ in found])
    recipes = [(_label_by_hand(recipe, path, own), recipe) for recipe, path in found]
    runs = [
        _read_run(label, _seed(recipe), path, None)
        for (label, recipe), (_, path) in zip(recipes, found, strict=True)
    ]
    _refuse_twins(runs)
    labels = tuple(sorted(dict(recipes), key=lambda label: _rank(label, dict(recipes)[label])))
    seeds = tuple(sorted({run.seed for run in runs}))
    ordered = tuple(sorted(runs, key=lambda run: (labels.index(run.label), run.seed)))
    varied = [f"rewards.{place}.{key}" for place, key in own]
    return _experiment(folder, labels, seeds, ordered, recipes, REACHED, varied=varied)


def _own(recipes: Sequence[Recipe]) -> list[tuple[int, str]]:
    """Places of rewards whose weight or gate is not the same in all recipes, and which of them."""
    places = enumerate(zip(*(recipe.rewards for recipe in recipes), strict=False))
    return [
        (place, key)
        for place, entries in places
        for key in ("weight", "gate")
        if any(getattr(entry, key) != getattr(entries[0], key) for entry in entries)
    ]


def _label_by_hand(recipe: Recipe, path: Path, own: Sequence[tuple[int, str]]) -> str:
    """What `gdpo compare --vary` would call the estimator of a run that was started by hand."""
    names = list(RunDirectory(path).read_ranges()) or [entry.name for entry in recipe.rewards]
    values = [
        f"{names[place]}.{key}={in_words(getattr(recipe.rewards[place], key))}"
        for place, key in own
        if place < len(names)
    ]
    return label_of(recipe.advantage, " ".join(values))


def _rank(label: str, recipe: Recipe) -> tuple[int, str, list[float], str]:
    """Estimators as gdpo lists them, GRPO being the first, and users' own; large weights first."""
    known = [*ESTIMATORS, recipe.advantage].index(recipe.advantage)
    return known, recipe.advantage, [-entry.weight for entry in recipe.rewards], label


def _compared(folder: Path, plan: Plan) -> Experiment:
    cells = [(label, seed) for label in plan.labels for seed in plan.seeds]
    runs = tuple(
        _read_run(label, seed, folder / run_name(label, seed), failure_file(folder, label, seed))
        for label, seed in cells
    )
    begun = [run for run in runs if _is_run(run.path)]
    recipes = [(run.label, read_recipe(RunDirectory(run.path).recipe)) for run in begun]
    if not recipes:
        raise DataError(
            f"{folder}: no run of this comparison has begun yet; there is nothing to see"
        )
    return _experiment(
        folder, plan.labels, plan.seeds, runs, recipes, plan.reach, varied=plan.varied
    )


def _experiment(
    folder: Path,
    labels: tuple[str, ...],
    seeds: tuple[int, ...],
    runs: tuple[Run, ...],
    recipes: Sequence[tuple[str, Recipe]],
    reach: float,
    *,
    varied: Sequence[str] = (),
) -> Experiment:
    """All that was read; the recipes are those of the runs that have begun, with their estimators."""
    _refuse_different(folder, [recipe for _, recipe in recipes], varied)
    steps = [_steps(recipe) for _, recipe in recipes] + [run.steps for run in runs]
    rewards = _measured([recipe for _, recipe in recipes], runs)
    return Experiment(
        name=recipes[0][1].task,
        path=folder,
        labels=labels,
        seeds=seeds,
        rewards=rewards,
        total_steps=max(steps),
        runs=runs,
        reach=reach,
        unlike=unlike(labels, [reward.name for reward in rewards], dict(recipes)),
    )


def _measured(recipes: Sequence[Recipe], runs: Sequence[Run]) -> tuple[Measured, ...]:
    """Return the rewards with the ranges that runs kept, or else with what was seen.

    No code that the recipe names is imported: a run may come from anywhere.
    """
    ranges = _declared(runs) or dict.fromkeys(_logged(runs))
    weights = (
        {entry.weight for entry in each}
        for each in zip(*(r.rewards for r in recipes), strict=False)
    )
    return tuple(
        Measured(name, *(known or _seen(name, runs)), each.pop() if len(each) == 1 else None)
        for (name, known), each in zip(ranges.items(), weights, strict=False)
    )


def _declared(runs: Sequence[Run]) -> dict[str, tuple[float, float] | None]:
    """The ranges that hold for all runs: a gate adds 0 to that of its own estimators."""
    begun = [RunDirectory(run.path).read_ranges() for run in runs if _is_run(run.path)]
    names = dict.fromkeys(name for kept in begun for name in kept)
    known = {name: [kept[name] for kept in begun if name in kept] for name in names}
    return {name: _widest(ranges) for name, ranges in known.items()}


def _widest(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """All of them together; None where one is unknown."""
    known = [each for each in ranges if each is not None]
    if len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def unlike(
    labels: Sequence[str], names: Sequence[str], recipes: Mapping[str, Recipe]
) -> frozenset[tuple[str, str]]:
    """Estimators and rewards with another gate or other options than in the first estimator.

    Args:
        labels: All; the first is what the others are compared with.
        names: Of the rewards, as logs have them.
        recipes: By estimator; those of estimators that have no run yet may be missing.
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


def _logged(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.means))


def _seen(name: str, runs: Iterable[Run]) -> tuple[float, float]:
    values = np.concatenate([np.empty(0), *(r.means[name] for r in runs if name in r.means)])
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if low < high else (low, low + 1.0)


def _read_run(label: str, seed: int, path: Path, failed: Path | None) -> Run:
    run = RunDirectory(path)
    rows = [row for row in run.read_metrics() if "loss" in row] if path.is_dir() else []
    state, why = _state(run, failed)
    return Run(label, seed, path, state, why, *_curves(rows))


def _state(run: RunDirectory, failed: Path | None) -> tuple[State, str]:
    begun = _is_run(run.path)
    if begun and is_locked(run.path):
        return "running", ""
    if begun and "finished" in run.read_environment():
        return "finished", ""
    if failed is not None and failed.is_file():
        return "failed", _why(failed)
    return ("interrupted" if begun else "waiting"), ""


def _why(file: Path) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{file} cannot be read"


def _curves(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, _Curve], dict[str, _Curve]]:
    """The mean of each reward, and the lengths, at each step; NaN at steps that were not logged."""
    rows = [row for row in rows if isinstance(row.get("step"), int) and row["step"] > 0]
    count = max((row["step"] for row in rows), default=0)
    means: dict[str, _Curve] = {}
    lengths: dict[str, _Curve] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith("rewards/") and key.endswith("/mean"):
                curves, name = means, key.removeprefix("rewards/").removesuffix("/mean")
            elif key in _LENGTHS:
                curves, name = lengths, _LENGTHS[key]
            else:
                continue
            curve = curves.setdefault(name, np.full(count, np.nan))
            if isinstance(value, int | float):
                curve[row["step"] - 1] = value
    return means, lengths


def _steps(recipe: Recipe) -> int:
    """That the recipe asks for; 0 where its data decides."""
    steps = recipe.trainer.get("max_steps", -1)
    return steps if isinstance(steps, int) and steps > 0 else 0


def _seed(recipe: Recipe) -> int:
    seed = recipe.trainer.get("seed", _DEFAULT_SEED)
    return seed if isinstance(seed, int) else _DEFAULT_SEED


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    return [path for path in folder.iterdir() if path.is_dir()]


def _is_run(path: Path) -> bool:
    run = RunDirectory(path)
    return run.recipe.is_file() and run.environment.is_file()


def may_differ(key: str) -> bool:
    """Whether runs that are compared may differ in this key of their recipes."""
    return key in _MAY_DIFFER or key.split(".")[0] == "advantage_options"


def _refuse_different(folder: Path, recipes: Sequence[Recipe], varied: Sequence[str]) -> None:
    """Raise a DataError where runs differ in more than estimator, seed and what is not trained."""
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
                f"{folder}: the runs {first.name} and {other.name} differ in more than estimator "
                f"and seed, so that they cannot be compared: {shown}. Put them into folders of "
                "their own"
            )


def _refuse_twins(runs: Sequence[Run]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        if (other := seen.setdefault((run.label, run.seed), run.path)) != run.path:
            raise DataError(
                f"{other} and {run.path} are both {run.label} with seed {run.seed}: only one of them "
                "can stand for it. Move the other one elsewhere"
            )
