"""Runs a comparison: estimators times seeds, each an ordinary `gdpo train` in a process of its own."""

import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

import yaml

from gdpo._files import to_json, write_whole
from gdpo.advantages import resolve_estimator
from gdpo.errors import ConfigError
from gdpo.experiments.comparison import listed
from gdpo.experiments.process import (
    NOTE,
    Orphan,
    Training,
    describe_ending,
    find_orphan,
    forget_ended,
    noted,
    signals_held,
    start_training,
    stop_trainings,
    wait_for_end,
)
from gdpo.experiments.reading import (
    LOGS,
    Plan,
    failure_file,
    label_of,
    may_differ,
    read_plan,
    run_name,
    unlike,
)
from gdpo.experiments.statistics import ALPHA, FEWEST_SEEDS, least_p
from gdpo.recipes.recipe import Recipe, RewardConfig, differences
from gdpo.recipes.resolve import Resolved, resolve
from gdpo.recipes.yaml import split_values
from gdpo.runs.directory import RunDirectory
from gdpo.runs.lock import alone

_OWN_OPTIONS = {
    "advantage": "estimators go by --estimators",
    "trainer.seed": "seeds go by --seeds",
    "name": "each run has a name of its own",
    "runs_dir": "the folder goes by --output",
}
"""Keys that are not varied by `--vary`, and why."""


def read_variants(vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Every combination of the values of some keys, as `--set` takes them, by its name.

    Args:
        vary: `a.b=1,0.5`, the values being YAML with commas between.

    Raises:
        ConfigError: There is no `=`, no value, no YAML, a value twice, a key twice, or a key that
            an option of its own varies.

    Examples:
        >>> list(read_variants(["lora.r=8,16", "trainer.beta=0.0"]))
        ['lora.r=8 trainer.beta=0', 'lora.r=16 trainer.beta=0']
    """
    keys = [text.partition("=")[0].strip() for text in vary]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError(f"--vary names {', '.join(twice)} twice: give all its values in one")
    each = [_assignments(text) for text in vary]
    return {" ".join(map(_briefly, chosen)): chosen for chosen in product(*each)}


def _briefly(assignment: str) -> str:
    """A reward's name says that it is one; its number does not."""
    rest = assignment.removeprefix("rewards.")
    return assignment if rest[:1].isdigit() else rest


def estimator_of(label: str) -> str:
    """The estimator of an estimator of this name."""
    return label.partition(" ")[0]


def _assignments(text: str) -> tuple[str, ...]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (key and equals and values):
        raise ConfigError(f"--vary {text}: write it as key=value,value, as in lora.r=8,16")
    if key in _OWN_OPTIONS:
        raise ConfigError(f"--vary {text}: {_OWN_OPTIONS[key]}")
    written = split_values(values, f"--vary {text}")
    if twice := sorted({value for value in written if written.count(value) > 1}):
        raise ConfigError(f"--vary {text} names {', '.join(twice)} twice")
    return tuple(f"{key}={value}" for value in written)


_POLL_S = 0.5
_LEFT_OVERS = (".*.partial", f"{LOGS}/.*.partial")
"""What a process leaves that is killed while it writes."""

_SEEDS = 2**32
"""How many there are."""


@dataclass(slots=True)
class Cell:
    """One estimator with one seed."""

    label: str
    """Its estimator, and behind it the values that are its own."""
    seed: int
    resolved: Resolved
    failure: Path
    """Where it is kept that it failed."""
    training: Training | Orphan | None = None
    """While it runs."""
    device: str | None = None
    """Device of CUDA_VISIBLE_DEVICES. Empty: all devices. None: unknown."""
    ending: str = ""
    """What became of it when it was stopped before its end."""
    began: float = 0.0
    """When this call started to train it; seconds of the monotonic clock."""
    steps_before: int = 0
    """Done when it began."""

    @property
    def recipe(self) -> Recipe:
        """Of `resolved`."""
        return self.resolved.recipe

    @property
    def run(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.recipe.run_dir)

    @property
    def begun(self) -> bool:
        """Whether there is a run directory."""
        return self.run.environment.is_file()

    @property
    def finished(self) -> bool:
        """Whether it came to its last step."""
        return self.begun and "finished" in self.run.read_environment()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, which is a result, too."""
        return self.failure.is_file() and not self.finished

    @property
    def name(self) -> str:
        """Return what messages call this run."""
        return f"{self.label}, seed {self.seed}"

    @property
    def note(self) -> Path:
        """Where it is kept which process trains it."""
        return self.failure.with_name(f"{self.recipe.name}{NOTE}")

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.finished or self.failed

    def why(self) -> str:
        """What killed a failed run, or the last line that it printed."""
        lines = json.loads(self.failure.read_text(encoding="utf-8"))["why"].strip().splitlines()
        return lines[-1] if lines else ""


@dataclass(slots=True)
class Grid:
    """All cells of a comparison."""

    folder: Path
    plan: Plan
    cells: list[Cell]
    rewards: tuple[str, ...]
    """Their names, as logs have them."""

    def open(self) -> list[Cell]:
        """Return the runs that are neither finished nor failed, also those that others train."""
        return [cell for cell in self.cells if not cell.done]

    def running(self) -> list[Cell]:
        """Those that train now."""
        return [cell for cell in self.cells if cell.training is not None]

    def conclusion(self) -> str:
        """What became of the runs that were stopped, in one line."""
        done = sum(cell.finished for cell in self.cells)
        failed = sum(cell.failed for cell in self.cells)
        told = f"stopped with {done} of {len(self.cells)} runs done"
        told += f" and {failed} failed" if failed else ""
        ended = [f"{cell.name}: {cell.ending}" for cell in self.cells if cell.ending]
        return "; ".join([told, *ended, "the same command goes on"])


def make_grid(
    recipe: Recipe | Resolved,
    labels: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    reach: float,
    variants: Mapping[str, Recipe | Resolved] | None = None,
    retry_failed: bool = False,
) -> Grid:
    """The cells of a comparison. Seeds and estimators may be added to one; nothing is written yet.

    Added estimators come after those that are there; whoever names all of them decides their order.

    All runs of a seed have the same order of data, the same model to begin with and the same
    settings; only the estimator differs, and what variants vary. Its options are the recipe's where
    the recipe names the same estimator, and its defaults elsewhere.

    Args:
        recipe: What all share.
        labels: Estimators; the first is what the others are compared with.
        seeds: Of `trainer.seed`.
        folder: Where the runs lie. A comparison that is there goes on.
        reach: Share of a reward's range whose first crossing is timed.
        variants: The recipe with values of its own, by name: each makes estimators of every estimator.
            None: the recipe alone.
        retry_failed: Forget that runs failed.

    Raises:
        ConfigError: An estimator does not exist, something is named twice, two estimators would be the
            same or do not reward the same, or the folder holds another comparison or something
            else.
    """
    _check(labels, seeds, reach)
    shared = resolve(recipe)
    of_variant = {name: resolve(each) for name, each in (variants or {"": shared}).items()}
    named = {
        label_of(estimator, variant): varied
        for estimator in labels
        for variant, varied in of_variant.items()
    }
    found = {
        (label, seed): varied.under(_recipe_of(varied.recipe, label, seed, folder))
        for label, varied in named.items()
        for seed in seeds
    }
    of_one_seed = {label: found[label, seeds[0]] for label in named}
    _check_labels(of_one_seed)
    varied = _varied(shared.recipe, [each.recipe for each in of_one_seed.values()])
    plan = Plan(shared.recipe.to_yaml(), tuple(named), tuple(seeds), reach, varied)
    plan = _joined(folder, plan)
    cells = [
        Cell(label, seed, one, failure_file(folder, label, seed))
        for (label, seed), one in found.items()
    ]
    if retry_failed:
        for cell in cells:
            cell.failure.unlink(missing_ok=True)
    return Grid(folder, plan, cells, next(iter(found.values())).names)


def run_grid(
    grid: Grid,
    *,
    jobs: int,
    told: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _text: None,
) -> None:
    """Train whatever is left to do, several runs at a time.

    A run that was interrupted goes on from its last checkpoint. One that fails is kept as it is,
    with its reason, and counts in the statistics. Runs that another process trains, as after a
    comparison that was killed, are waited for, count in `jobs`, and are gone on with where they end
    early. Ctrl-C has all save and end, and waits for them; a second one kills them. What became of
    them is said by `Grid.conclusion`.

    Args:
        grid: What to train.
        jobs: Runs at a time. With several devices in CUDA_VISIBLE_DEVICES each gets one of them.
        told: Called now and then.
        say: Called with sentences that the user should read at once.
    """
    slots = _slots(jobs)
    with (
        signals_held() as unwind,
        alone(grid.folder, left_overs=_LEFT_OVERS),
        _stopped_at_the_end(grid, told, say),
    ):
        forget_ended(grid.folder / LOGS)
        grid.plan.write(grid.folder)
        left = grid.open()
        for cell in left:
            _adopt(cell, say)
        while left:
            left = [cell for cell in left if not _over(cell)]
            if left:
                unwind()
            _fill(left, slots, say)
            told()
            if left:
                time.sleep(_POLL_S)
        for cell in grid.cells:
            wait_for_end(cell.note, told)


def _check(labels: Sequence[str], seeds: Sequence[int], reach: float) -> None:
    for what, values in (("estimators", labels), ("seeds", seeds)):
        if not values:
            raise ConfigError(f"--{what} names none")
        if twice := sorted({str(v) for v in values if list(values).count(v) > 1}):
            raise ConfigError(f"--{what} names {', '.join(twice)} twice")
    if outside := [seed for seed in seeds if not 0 <= seed < _SEEDS]:
        raise ConfigError(f"--seeds names {outside[0]}; a seed is from 0 to {_SEEDS - 1}")
    if not 0 < reach <= 1:
        raise ConfigError(f"--reach is a share of a reward's range, above 0 and at most 1: {reach}")
    for label in labels:
        resolve_estimator(label)


def _check_labels(labels: Mapping[str, Resolved]) -> None:
    """Refuse estimators that cannot be told apart, and estimators that cannot be compared."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    first = next(iter(labels))
    rewards = [reward.name for reward in labels[first].rewards]
    for label, found in labels.items():
        digest = _what_trains(found.recipe).digest
        if (other := seen.setdefault(digest, label)) != label:
            raise ConfigError(f"{other!r} and {label!r} would be the same training: leave one out")
        if (other := folders.setdefault(run_name(label, 0), label)) != label:
            raise ConfigError(f"{other!r} and {label!r} have the same folder: rename one")
        if (names := [reward.name for reward in found.rewards]) != rewards:
            raise ConfigError(
                f"{first!r} rewards {', '.join(rewards)}, and {label!r} {', '.join(names)}: what is "
                "compared must be rewarded in all estimators; one with weight 0 is logged all the same"
            )


def _what_trains(recipe: Recipe) -> Recipe:
    """The recipe without what changes no training of TRL's."""
    per_step = {"rollouts_per_step": recipe.batch.per_step}
    return recipe.model_copy(
        update={
            "name": "run",
            "verl": {},
            "save_minutes": 1.0,
            "batch": recipe.batch.model_copy(update=per_step),
        }
    )


def _varied(shared: Recipe, labels: Iterable[Recipe]) -> tuple[str, ...]:
    """Keys of the recipe in which estimators differ from it, beside those that every comparison may."""
    changed = dict.fromkeys(key for label in labels for key in differences(shared, label))
    return tuple(key for key in changed if not may_differ(key))


def _recipe_of(recipe: Recipe, label: str, seed: int, folder: Path) -> Recipe:
    estimator = estimator_of(label)
    same = estimator == recipe.advantage
    return recipe.model_copy(
        update={
            "name": run_name(label, seed),
            "runs_dir": str(folder),
            "advantage": estimator,
            "advantage_options": recipe.advantage_options if same else {},
            "trainer": {**recipe.trainer, "seed": seed, "logging_steps": 1},
        }
    )


def _joined(folder: Path, plan: Plan) -> Plan:
    """The plan with what the folder's comparison has already."""
    there = read_plan(folder)
    if there is None:
        if folder.exists() and not (folder.is_dir() and _is_blank(folder)):
            raise ConfigError(
                f"{folder} holds something else, and nothing is overwritten: --output"
            )
        return plan
    if not any(RunDirectory(path).environment.is_file() for path in folder.iterdir()):
        return plan  # nothing was trained: the one before was a mistake
    _refuse_other(folder, there.recipe, plan.recipe)
    named_all = set(there.labels) <= set(plan.labels)
    return Plan(
        plan.recipe,
        plan.labels if named_all else tuple(dict.fromkeys((*there.labels, *plan.labels))),
        tuple(dict.fromkeys((*there.seeds, *plan.seeds))),
        plan.reach,
        tuple(dict.fromkeys((*there.varied, *plan.varied))),
    )


def _is_blank(folder: Path) -> bool:
    """Return whether a folder holds hidden files only."""
    return all(path.name.startswith(".") for path in folder.iterdir())


def _refuse_other(folder: Path, old: str, new: str) -> None:
    before, after = (Recipe.model_validate(yaml.safe_load(text)) for text in (old, new))
    changed = differences(before, after)
    if changed:
        shown = "\n".join(f"  {key}: {a!r} → {b!r}" for key, (a, b) in changed.items())
        raise ConfigError(
            f"{folder} holds a comparison of another recipe:\n{shown}\nName another folder: "
            "--output"
        )


def _fill(left: Sequence[Cell], slots: Sequence[str], say: Callable[[str], None]) -> None:
    """Start as many as there is room for."""
    for cell in left:
        if cell.training is None and (free := _free(slots, left)):
            _adopt(cell, say)
            if cell.training is None:
                _start(cell, free[0])


def _adopt(cell: Cell, say: Callable[[str], None]) -> None:
    """Take note of another process that trains it."""
    orphan = find_orphan(cell.run, cell.note)
    if orphan is None:
        return
    _begin(cell, orphan, orphan.device)
    whose = "another process" if orphan.pid is None else "a process of an earlier comparison"
    say(f"{cell.name} is trained by {whose}: waiting for it")


def _start(cell: Cell, device: str) -> None:
    logs = cell.failure.parent
    logs.mkdir(parents=True, exist_ok=True)
    with noted(cell.note, device) as (descriptor, write):
        training = start_training(
            cell.recipe,
            logs,
            resume=cell.begun,
            environment={"CUDA_VISIBLE_DEVICES": device} if device else {},
            inherited=[descriptor],
        )
        _begin(cell, training, device)
        write(training.process.pid)


def _begin(cell: Cell, training: Training | Orphan, device: str | None) -> None:
    cell.training, cell.device, cell.ending = training, device, ""
    cell.began = time.monotonic()
    cell.steps_before = len(cell.run.read_metrics()) if cell.begun else 0


def _over(cell: Cell) -> bool:
    """Whether a cell needs nothing more in this call; a failure is written down."""
    training = cell.training
    if training is None or training.running:
        return False
    cell.training = None
    cell.note.unlink(missing_ok=True)
    if isinstance(training, Orphan):
        return cell.done
    if training.failed and not training.interrupted:
        told = {"exit_code": training.process.returncode, "why": training.why()}
        write_whole(cell.failure, to_json(told, indent=2))
    elif not cell.finished:
        cell.ending = describe_ending(cell.run, killed=False)
    return True


def _slots(jobs: int) -> list[str]:
    """The device of each of the runs that train at a time; empty: what this process has."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return list(islice(cycle(named if len(named) > 1 and jobs > 1 else [""]), jobs))


def _free(slots: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """Return the unused slots. A run on an unlisted device uses up the last one."""
    left = list(slots)
    running = [cell.device for cell in cells if cell.training is not None]
    for device in sorted(running, key=lambda each: each not in slots):
        if left:
            left.remove(device) if device in left else left.pop()
    return left


@contextmanager
def _stopped_at_the_end(
    grid: Grid, told: Callable[[], None], say: Callable[[str], None]
) -> Generator[None]:
    try:
        yield
    finally:
        running = grid.running()
        ours = [cell for cell in running if not _is_foreign(cell.training)]
        killed = stop_trainings([cell.training for cell in ours if cell.training], say, told)
        for cell in running:
            cell.ending = _ending(cell, killed=any(cell.training is each for each in killed))
        for cell in ours:
            cell.note.unlink(missing_ok=True)
        for cell in running:
            cell.training = None


def _is_foreign(training: Training | Orphan | None) -> bool:
    return isinstance(training, Orphan) and training.pid is None


def _ending(cell: Cell, *, killed: bool) -> str:
    training = cell.training
    if cell.finished:
        return ""
    if _is_foreign(training):
        return "another process trains it, and goes on"
    ending = describe_ending(cell.run, killed=killed)
    if isinstance(training, Training) and training.failed and not (killed or training.interrupted):
        return f"failed while it stopped ({training.why().splitlines()[-1]}); {ending}"
    return ending


_MOST_SEEDS = 100
"""Up to which a number is looked for that could tell a difference."""


def described(grid: Grid, *, jobs: int) -> list[str]:
    """Sentences about the runs of a grid, an estimator in each, and about what they can decide.

    Args:
        grid: Nothing of it need be there yet.
        jobs: Runs at a time.
    """
    labels = list(dict.fromkeys(cell.label for cell in grid.cells))
    seeds = list(dict.fromkeys(cell.seed for cell in grid.cells))
    left = len(grid.open())
    return [
        f"{_count(len(grid.cells), 'run')} in {grid.folder}, {left} of them to do, {jobs} at a "
        f"time: {_count(len(labels), 'estimator')} with {_count(len(seeds), 'seed')} "
        f"({', '.join(map(str, seeds))})",
        *(_label(grid, [cell for cell in grid.cells if cell.label == label]) for label in labels),
        *_decidable(grid),
    ]


def _label(grid: Grid, cells: Sequence[Cell]) -> str:
    entries = zip(grid.rewards, cells[0].recipe.rewards, strict=True)
    rewards = ", ".join(f"{name} × {entry.weight:g}{_gate(entry)}" for name, entry in entries)
    done = sum(cell.done for cell in cells)
    folder = run_name(cells[0].label, cells[0].seed) + ", …" * (len(cells) > 1)
    return f"  {cells[0].label}: {rewards}; {done} of {len(cells)} done; {folder}"


def _gate(entry: RewardConfig) -> str:
    return "" if entry.gate is None else f" where {entry.gate.on} ≥ {entry.gate.at_least:g}"


def _decidable(grid: Grid) -> list[str]:
    """How many comparisons there are, and how many seeds they need."""
    first, *others = grid.plan.labels
    if not others:
        return [f"One estimator: there is nothing to compare {first} with."]
    apart = unlike(grid.plan.labels, grid.rewards, {cell.label: cell.recipe for cell in grid.cells})
    count, seeds = len(others) * len(grid.rewards) - len(apart), len(grid.plan.seeds)
    told = [
        f"What it can decide: {_count(len(others), 'estimator')} against {first} in "
        f"{listed(grid.rewards)}: {_count(count, 'comparison')}."
    ]
    told += [
        f"{name} has another gate or other options than in {first} in {_count(otherwise, 'estimator')}: "
        "there it is another quantity, and is not compared."
        for name in grid.rewards
        if (otherwise := sum(reward == name for _, reward in apart))
    ]
    return [*told, _power(seeds, count)] if count else told


def _power(seeds: int, count: int) -> str:
    """Whether so many seeds could tell a difference at all."""
    least = min(1.0, least_p(seeds, seeds) * count)
    could = f"With {_count(seeds, 'seed')} a p-value can be {least:.2g} at the least, corrected"
    if seeds >= FEWEST_SEEDS and least < ALPHA:
        return f"{could}: a clear difference can be found."
    enough = (n for n in range(FEWEST_SEEDS, _MOST_SEEDS) if least_p(n, n) * count < ALPHA)
    return f"{could}: no difference can be told. --seeds {next(enough, _MOST_SEEDS)} could."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
