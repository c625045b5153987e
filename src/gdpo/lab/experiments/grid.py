"""Runs a comparison: one `gdpo train` process for each estimator and seed."""

import os
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

import yaml

from gdpo._files import write_json
from gdpo._text import counted
from gdpo.advantages import ESTIMATORS, resolve_estimator
from gdpo.errors import ConfigError
from gdpo.lab.experiments.comparison import listed
from gdpo.lab.experiments.process import (
    NOTE,
    Orphan,
    Say,
    Training,
    Update,
    find_orphan,
    forget_ended,
    noted,
    signals_held,
    start_training,
    stop_trainings,
    wait_for_end,
)
from gdpo.lab.experiments.reading import (
    LOGS,
    ComparisonPlan,
    Label,
    estimator_of,
    failure_file,
    label_of,
    may_differ,
    read_plan,
    run_name,
    state_of,
    unlike,
)
from gdpo.lab.experiments.statistics import ALPHA, FEWEST_SEEDS, fewest_seeds, least_p
from gdpo.lab.recipes.recipe import Recipe, differences
from gdpo.lab.recipes.resolve import Resolved, resolve
from gdpo.lab.recipes.yaml import split_values
from gdpo.lab.runs.directory import RunDirectory, read_environment, read_metrics, read_run
from gdpo.lab.runs.lock import alone

_OWN_OPTIONS = {
    "advantage": "use --estimators instead",
    "trainer.seed": "use --seeds instead",
    "name": "gdpo compare names the runs itself",
    "runs_dir": "use --output instead",
}
"""Recipe keys that `--vary` does not accept, and what to do instead."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
"""Pattern of valid names for estimators. These names become part of folder names."""

_NEED_OPTIONS = ("constrained_grpo",)
"""Estimators that `all` does not include, because they need options."""

_RESERVED = ("all", "recorded")
"""Words that have a special meaning in lists of estimators."""


def read_labels(text: str) -> list[str]:
    """Return the comma-separated labels in `--estimators`, some as `name=estimator`.

    `all` stands for every estimator that needs no options.

    Raises:
        ConfigError: If a name is invalid or reserved, refers to two estimators, or has no estimator
            after the `=`.

    Examples:
        >>> read_labels("grpo, mine=my_module:my_estimator")
        ['grpo', 'mine']
    """
    if text == "all":
        return [name for name in ESTIMATORS if name not in _NEED_OPTIONS]
    return [_read_label(part.strip()) for part in text.split(",") if part.strip()]


def _read_label(text: str) -> str:
    name, equals, estimator = (part.strip() for part in text.partition("="))
    if not equals:
        return name
    if not estimator:
        raise ConfigError(f"--estimators {text}: write the estimator after the =, as in ours=gdpo")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--estimators {text}: {name!r} is not a valid name. Use at most 40 letters, "
            "digits, '_', '-' and '.', starting with a letter or digit"
        )
    if name in _RESERVED or (name in ESTIMATORS and name != estimator):
        what = "an estimator" if name in ESTIMATORS else "a reserved word"
        raise ConfigError(f"--estimators {text}: {name!r} is {what}. Choose another name")
    return name if name == estimator else Label(name, estimator)


def read_variants(vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return every combination of the varied values, keyed by name, in the format of `--set`.

    `vary` lists recipe keys with comma-separated YAML values, such as `a.b=1,0.5`.

    Raises:
        ConfigError: If the `=` or the value is missing, a value is not valid YAML, a key or value
            is repeated, or another option sets the key.

    Examples:
        >>> list(read_variants(["lora.r=8,16", "trainer.beta=0.0"]))
        ['lora.r=8 trainer.beta=0', 'lora.r=16 trainer.beta=0']
    """
    keys = [text.partition("=")[0].strip() for text in vary]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError(f"--vary sets {', '.join(twice)} twice: list all values in one --vary")
    each = [_assignments(text) for text in vary]
    # The prefix of a reward's name is dropped, that of an index is kept.
    prefix = re.compile(r"^rewards\.(?!\d)")
    return {
        " ".join(prefix.sub("", assignment) for assignment in chosen): chosen
        for chosen in product(*each)
    }


def _assignments(text: str) -> tuple[str, ...]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (key and equals and values):
        raise ConfigError(f"--vary {text}: write key=value,value, as in lora.r=8,16")
    if key in _OWN_OPTIONS:
        raise ConfigError(f"--vary {text}: {key} cannot be varied; {_OWN_OPTIONS[key]}")
    written = split_values(values, f"--vary {text}")
    if twice := sorted({value for value in written if written.count(value) > 1}):
        raise ConfigError(f"--vary {text} lists {', '.join(twice)} twice: remove one")
    return tuple(f"{key}={value}" for value in written)


_POLL_S = 0.5
_LEFT_OVERS = (".*.partial", f"{LOGS}/.*.partial")
"""Patterns of partial files that remain if a process is killed while writing."""

_SEEDS = 2**32
"""Number of valid seeds. The lowest seed is 0."""


@dataclass(slots=True)
class Cell:
    """Stores the state of one run, which has a label and a seed."""

    label: str
    """The estimator's name, followed by the values that were varied."""
    seed: int
    resolved: Resolved
    failure: Path
    """The file that records a failure of the run."""
    training: Training | Orphan | None = None
    """The process that trains the run."""
    device: str | None = None
    """Device for the run, as in CUDA_VISIBLE_DEVICES. Empty: all devices. None: unknown."""
    began: float = 0.0
    """Monotonic time at which this call to `run_grid` started the run, in seconds."""
    steps_before: int = 0
    """Number of steps that were finished at that time."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.resolved.recipe

    @property
    def run(self) -> RunDirectory:
        """The run directory."""
        return RunDirectory(self.recipe.run_dir)

    @property
    def begun(self) -> bool:
        """Whether the run directory exists."""
        return self.run.environment.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run finished its last step."""
        return self.begun and "finished" in read_environment(self.run)

    @property
    def failed(self) -> bool:
        """Whether the run ended with an error."""
        return self.failure.is_file() and not self.finished

    @property
    def name(self) -> str:
        """The run's name in messages."""
        return f"{self.label}, seed {self.seed}"

    @property
    def note(self) -> Path:
        """The file that records which process trains the run."""
        return self.failure.with_name(f"{self.recipe.name}{NOTE}")

    @property
    def done(self) -> bool:
        """Whether the run has finished or failed."""
        return self.finished or self.failed

    def why(self) -> str:
        """Return one line: the signal that killed a failed run, or its last line of output."""
        _, why = state_of(read_run(self.run) if self.begun else None, self.failure)
        return why.strip().splitlines()[-1] if why.strip() else ""


@dataclass(slots=True)
class Grid:
    """Stores the plan, the rewards and the runs of a comparison."""

    folder: Path
    plan: ComparisonPlan
    cells: list[Cell]
    rewards: tuple[str, ...]
    """Names of the rewards in the logs."""

    def open(self) -> list[Cell]:
        """Return the runs that are not `done`, including those of other processes."""
        return [cell for cell in self.cells if not cell.done]

    def running(self) -> list[Cell]:
        """Return the runs in training."""
        return [cell for cell in self.cells if cell.training is not None]

    def conclusion(self) -> str:
        """Return one line: how many runs are done, and how to resume the others."""
        done = sum(cell.finished for cell in self.cells)
        failed = sum(cell.failed for cell in self.cells)
        text = f"stopped with {done} of {len(self.cells)} runs done"
        text += f" and {failed} failed" if failed else ""
        return f"{text}; rerun the same command to resume"


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
    """Return the runs of a new or existing comparison, without starting any run.

    Seeds and estimators can be added to an existing comparison. New estimators come last, unless
    `labels` names all existing ones too. Runs with the same seed differ only in estimator and
    varied values. The recipe's estimator gets the recipe's options, and the others their defaults.

    Args:
        recipe: Recipe of all runs.
        labels: Labels from `read_labels`. The first is the baseline.
        seeds: Values of `trainer.seed`.
        folder: The comparison's folder.
        reach: Threshold for every reward, as a share of its range: above 0 and at most 1.
        variants: Recipes with the varied values, by name, each trained with every estimator. None:
            only `recipe`.
        retry_failed: Whether to train failed runs again, and delete their failure records.

    Raises:
        ConfigError: If an estimator is unknown, an estimator or seed is repeated, two labels mean
            the same configuration, labels have different rewards, or the folder contains anything
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
    changed = dict.fromkeys(
        key for each in of_one_seed.values() for key in differences(shared.recipe, each.recipe)
    )
    varied = tuple(key for key in changed if not may_differ(key))
    plan = ComparisonPlan(shared.recipe.to_yaml(), tuple(named), tuple(seeds), reach, varied)
    plan = _joined(folder, plan)
    meanings = {label: (estimator_of(label), label.partition(" ")[2]) for label in plan.labels}
    _refuse_same(meanings, "are the same configuration")
    # Some file systems (macOS) ignore case.
    folders = {label: run_name(label, 0).casefold() for label in plan.labels}
    _refuse_same(folders, "would share a run folder")
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
    update: Update = lambda: None,
    say: Say = lambda _text: None,
) -> None:
    """Train the runs that have not ended, `jobs` at a time.

    Interrupted runs resume from their last checkpoint. Failed runs are kept, with the reason, and
    included in the statistics. If another process is training a run, for example because an earlier
    comparison was killed, `run_grid` counts it in `jobs`, waits for it, and resumes the run if it
    exits early. After Ctrl-C, `run_grid` waits until all runs have saved and exited. A second
    Ctrl-C kills them.

    If CUDA_VISIBLE_DEVICES lists several devices, each run gets one device. `update` is called
    repeatedly, for a display, and `say` to show a message.
    """
    slots = _slots(jobs)
    with (
        signals_held() as unwind,
        alone(grid.folder, left_overs=_LEFT_OVERS),
        _stopped_at_the_end(grid, update, say),
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
            update()
            if left:
                time.sleep(_POLL_S)
        for cell in grid.cells:
            wait_for_end(cell.note, update)


def _check(labels: Sequence[str], seeds: Sequence[int], reach: float) -> None:
    for what, values in (("estimators", labels), ("seeds", seeds)):
        if not values:
            raise ConfigError(f"--{what} is empty: pass at least one")
        if twice := sorted({str(v) for v in values if list(values).count(v) > 1}):
            raise ConfigError(f"--{what} lists {', '.join(twice)} twice: remove one")
    if outside := [seed for seed in seeds if not 0 <= seed < _SEEDS]:
        raise ConfigError(f"--seeds {outside[0]}: a seed must be between 0 and {_SEEDS - 1}")
    if not 0 < reach <= 1:
        raise ConfigError(
            f"--reach {reach}: pass a share of each reward's range, above 0 and at most 1"
        )
    for label in labels:
        resolve_estimator(estimator_of(label), turns=True)


def _check_labels(labels: Mapping[str, Resolved]) -> None:
    """Raise ConfigError if labels have the same recipe or different rewards."""
    digests = {label: _what_trains(found.recipe).digest for label, found in labels.items()}
    _refuse_same(digests, "would train identical runs")
    first = next(iter(labels))
    rewards = [reward.name for reward in labels[first].rewards]
    for label, found in labels.items():
        if (names := [reward.name for reward in found.rewards]) != rewards:
            raise ConfigError(
                f"{str(first)!r} has the rewards {', '.join(rewards)}, but {str(label)!r} has "
                f"{', '.join(names)}: all must have the same rewards. To log a reward "
                "without training on it, set its weight to 0"
            )


def _refuse_same(labels: Mapping[str, object], what: str) -> None:
    """Raise ConfigError if two labels have the same value."""
    seen: dict[object, str] = {}
    for label, value in labels.items():
        if (other := seen.setdefault(value, label)) != label:
            raise ConfigError(
                f"{str(other)!r} and {str(label)!r} {what}: remove or rename one, or choose "
                "another folder with --output"
            )


def _what_trains(recipe: Recipe) -> Recipe:
    """Return the recipe without settings that do not affect training with TRL."""
    per_step = {"rollouts_per_step": recipe.batch.per_step}
    return recipe.model_copy(
        update={
            "name": "run",
            "verl": {},
            "save_minutes": 1.0,
            "batch": recipe.batch.model_copy(update=per_step),
        }
    )


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


def _joined(folder: Path, plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan, merged with that of an existing comparison in the folder."""
    there = read_plan(folder)
    if there is None:
        hidden_only = folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir())
        if folder.exists() and not hidden_only:
            raise ConfigError(
                f"{folder} exists and is not a comparison: choose another folder with --output"
            )
        return plan
    if not any(RunDirectory(path).environment.is_file() for path in folder.iterdir()):
        return plan  # No run was started, so the earlier plan can be dropped.
    before, after = (Recipe.model_validate(yaml.safe_load(p.recipe)) for p in (there, plan))
    if changed := differences(before, after):
        shown = "\n".join(f"  {key}: {a!r} → {b!r}" for key, (a, b) in changed.items())
        raise ConfigError(
            f"{folder} contains a comparison with a different recipe:\n{shown}\nChoose another "
            "folder with --output"
        )
    before_by_name = {label: estimator_of(label) for label in there.labels}
    for label in plan.labels:
        if (named := before_by_name.get(label, estimator_of(label))) != estimator_of(label):
            raise ConfigError(
                f"{folder}: in this comparison, {str(label)!r} is the name of {named}, not of "
                f"{estimator_of(label)}. Choose another name, or another folder with --output"
            )
    named_all = set(there.labels) <= set(plan.labels)
    return ComparisonPlan(
        plan.recipe,
        plan.labels if named_all else tuple(dict.fromkeys((*there.labels, *plan.labels))),
        tuple(dict.fromkeys((*there.seeds, *plan.seeds))),
        plan.reach,
        tuple(dict.fromkeys((*there.varied, *plan.varied))),
    )


def _fill(left: Sequence[Cell], slots: Sequence[str], say: Say) -> None:
    for cell in left:
        if cell.training is None and (free := _free(slots, left)):
            _adopt(cell, say)
            if cell.training is None:
                _start(cell, free[0])


def _adopt(cell: Cell, say: Say) -> None:
    """Record and report another process that is training a run."""
    orphan = find_orphan(cell.run, cell.note)
    if orphan is None:
        return
    _begin(cell, orphan, orphan.device)
    whose = "another process" if orphan.pid is None else "a process of an earlier comparison"
    say(f"{cell.name} is being trained by {whose}: waiting for it to end")


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
    cell.training, cell.device = training, device
    cell.began = time.monotonic()
    cell.steps_before = len(read_metrics(cell.run)) if cell.begun else 0


def _over(cell: Cell) -> bool:
    """Return whether nothing is left to do for a run. If its process failed, record the failure."""
    training = cell.training
    if training is None or training.running:
        return False
    cell.training = None
    cell.note.unlink(missing_ok=True)
    if isinstance(training, Orphan):
        return cell.done
    if training.failed and not training.interrupted:
        failure = {"exit_code": training.process.returncode, "why": training.why()}
        write_json(cell.failure, failure)
    return True


def visible_devices() -> list[str]:
    """Return the devices in CUDA_VISIBLE_DEVICES."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def _slots(jobs: int) -> list[str]:
    """Return the devices for concurrent runs, one per run. Empty: all devices."""
    named = visible_devices()
    return list(islice(cycle(named if len(named) > 1 and jobs > 1 else [""]), jobs))


def _free(slots: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """Return the unused slots. A run on an unlisted device takes the last slot."""
    left = list(slots)
    running = [cell.device for cell in cells if cell.training is not None]
    for device in sorted(running, key=lambda each: each not in slots):
        if left:
            left.remove(device) if device in left else left.pop()
    return left


@contextmanager
def _stopped_at_the_end(grid: Grid, update: Update, say: Say) -> Generator[None]:
    try:
        yield
    finally:
        ours = [each for cell in grid.cells if (each := cell.training) and not each.is_foreign]
        stop_trainings(ours, say, update)
        for cell in grid.cells:
            if cell.training in ours:
                cell.note.unlink(missing_ok=True)
            cell.training = None


def described(grid: Grid, *, jobs: int) -> list[str]:
    """Return lines about a comparison: its runs, labels, and whether it can find a difference."""
    labels = list(dict.fromkeys(cell.label for cell in grid.cells))
    seeds = list(dict.fromkeys(cell.seed for cell in grid.cells))
    left = len(grid.open())
    what = "variant" if grid.plan.varied else "estimator"
    return [
        f"{counted(len(grid.cells), 'run')} in {grid.folder}, {left} left to train, {jobs} at a "
        f"time: {counted(len(labels), what)} with {counted(len(seeds), 'seed')} "
        f"({', '.join(map(str, seeds))})",
        *(
            f"  {label}: {sum(c.done for c in grid.cells if c.label == label)} of {len(seeds)} "
            f"done; folders {run_name(label, seeds[0])}{', …' * (len(seeds) > 1)}"
            for label in labels
        ),
        *decidable(grid),
    ]


def decidable(grid: Grid) -> list[str]:
    """Return sentences about what a comparison could show, before training."""
    first, *others = grid.plan.labels
    if not others:
        return [f"There is no estimator to compare with {first}."]
    apart = unlike(grid.plan.labels, grid.rewards, {cell.label: cell.recipe for cell in grid.cells})
    count, seeds = len(others) * len(grid.rewards) - len(apart), len(grid.plan.seeds)
    what = "variant" if grid.plan.varied else "estimator"
    against = others[0] if len(others) == 1 else counted(len(others), what)
    what_in = f"{against} with {first} in {listed(grid.rewards)}"
    sentences = [f"Compares {what_in}: {counted(count, 'comparison')}."]
    sentences += [
        f"{name} is not compared for {counted(otherwise, what)}, because its gate or options "
        f"differ from those for {first}."
        for name in grid.rewards
        if (otherwise := sum(reward == name for _, reward in apart))
    ]
    if not count:
        return sentences
    least = min(1.0, least_p(seeds, seeds) * count)
    corrected = f" after correction for {count} comparisons" if count > 1 else ""
    smallest = f"With {counted(seeds, 'seed')} no p-value can be below {least:.2g}{corrected}"
    if seeds >= FEWEST_SEEDS and least < ALPHA:
        verdict = f"a clear difference can be found (p below {ALPHA:g})."
    else:
        verdict = (
            "this comparison cannot show a difference. "
            f"To find one, it needs --seeds {fewest_seeds(count)} or more."
        )
    return [*sentences, f"{smallest}: {verdict}"]
