"""The demo from end to end: policy, data, two estimators side by side, and what came out."""

import json
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo.demo._policy import PolicySettings, count_parameters, make_policy, policy_folder
from gdpo.demo._report import ONE_SEED, Curve, curves, draw_picture, last_answers, report_table
from gdpo.demo._tools import tool_rows
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.experiments.analysis import analyse
from gdpo.experiments.process import (
    Training,
    describe_ending,
    signals_held,
    start_training,
    stop_trainings,
    terminable,
)
from gdpo.experiments.reading import read_experiment
from gdpo.recipes.recipe import BatchConfig, DataConfig, Recipe
from gdpo.report import write_report
from gdpo.rewards import Reward
from gdpo.runs.directory import RunDirectory
from gdpo.tasks import resolve_task

_BLOCKS = "▁▂▃▄▅▆▇█"


_TREND_WIDTH = 20


_EVERY = 10
"""A console that is no terminal gets a line per estimator every so many steps."""


@dataclass(slots=True)
class ArmView:
    """What is shown of an estimator."""

    name: str
    total_steps: int
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def means(self, reward: Reward) -> list[float]:
        """The mean reward of each step."""
        return [row[f"rewards/{reward.name}/mean"] for row in self.rows]


@contextmanager
def warm_start_bar(console: Console, total: int) -> Generator[Callable[[int], None]]:
    """A bar for the supervised phase; yields what is told how many steps are done."""
    columns = (
        TextColumn("warm start"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def labels_display(
    console: Console, views: Sequence[ArmView], rewards: Sequence[Reward]
) -> Generator[Callable[[], None]]:
    """Show the estimators while the context lasts; yields what is called after the views have changed."""
    if not console.is_terminal:
        shown = dict.fromkeys((view.name for view in views), 0)
        yield lambda: _print_lines(console, views, rewards, shown)
        return
    started = time.monotonic()
    with Live(
        console=console,
        get_renderable=lambda: _dashboard(views, rewards, time.monotonic() - started),
        refresh_per_second=4,
    ) as live:
        yield live.refresh


def _dashboard(
    views: Sequence[ArmView], rewards: Sequence[Reward], seconds: float
) -> RenderableType:
    bars = Table.grid(padding=(0, 1))
    for view in views:
        bars.add_row(
            Text(view.name.upper(), style="bold"),
            ProgressBar(total=view.total_steps, completed=view.step, width=40),
            f"step {view.step} of {view.total_steps}" if view.rows else "starting …",
        )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("mean reward", style="cyan")
    for view in views:
        table.add_column(view.name.upper(), justify="right")
        table.add_column("", width=_TREND_WIDTH)
    for reward in rewards:
        cells = [cell for view in views for cell in _cells(view, reward)]
        table.add_row(f"{reward.name} ({reward.low:g} to {reward.high:g})", *cells)
    return Group(bars, table, Text(f"{seconds:.0f} s", style="dim"))


def _cells(view: ArmView, reward: Reward) -> tuple[str, str]:
    means = view.means(reward)
    return (f"{means[-1]:.2f}" if means else "–", trend(means, reward.low, reward.high))


def trend(values: Sequence[float], low: float, high: float, width: int = _TREND_WIDTH) -> str:
    """A line of blocks, the newest value at the right, on a scale from `low` to `high`.

    >>> trend([0.0, 0.5, 1.0, 1.0], 0.0, 1.0, width=2)
    '▃█'
    """
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)] if width else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((mean - low) / (high - low) * top)] for mean in means)


def _print_lines(
    console: Console, views: Sequence[ArmView], rewards: Sequence[Reward], shown: dict[str, int]
) -> None:
    for view in views:
        due = view.step - view.step % _EVERY if view.step < view.total_steps else view.step
        if due > shown[view.name]:
            shown[view.name] = due
            console.print(Text(_line(view, view.rows[due - 1], rewards)), soft_wrap=True)


def _line(view: ArmView, row: Mapping[str, Any], rewards: Sequence[Reward]) -> str:
    means = ", ".join(f"{r.name} {row[f'rewards/{r.name}/mean']:.2f}" for r in rewards)
    return f"{view.name.upper()} step {row['step']} of {view.total_steps}: {means}"


LABELS = ("grpo", "gdpo")
"""Estimators that are compared, in the order in which they are shown."""


@contextmanager
def side_by_side(
    recipes: Sequence[Recipe], folder: Path, say: Callable[[str], None]
) -> Generator[tuple[list[Training], Callable[[], None]]]:
    """Start an estimator per recipe; whatever ends the context has those that still run save and end.

    Args:
        recipes: What the estimators train.
        folder: Where their recipes and logs are written, named after them.
        say: Called with what the user should read while an estimator saves, and with what became of it.

    Yields:
        The estimators, and what to call now and then: it raises if a signal asked to stop.
    """
    with signals_held() as unwind:
        labels: list[Training] = []
        try:
            for recipe in recipes:  # a started one must be known at once
                labels.append(start_training(recipe, folder, environment={"HF_HUB_OFFLINE": "1"}))  # noqa: PERF401
            yield labels, unwind
        finally:
            _stop([label for label in labels if label.running], say)


def _stop(labels: Sequence[Training], say: Callable[[str], None]) -> None:
    killed = stop_trainings(labels, say)
    for label in labels:
        say(f"{label.name}: {describe_ending(label.run, killed=label in killed)}")


_TASK = "tool_calling"
_DEFAULT_FOLDER = Path("runs") / "demo"
_NEEDED = ("torch", "transformers", "trl", "accelerate", "datasets")
_POLL_S = 0.25

_ROWS_SEED = 1000
"""Added to the seed of the rows, so that no seed draws the requests of the warm start."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Everything that decides the demo."""

    steps: int = 100
    """Optimizer steps of each estimator."""
    seed: int = 1
    """Decides requests and sampling; both estimators share it. The policy has a seed of its own.

    Seed 1 behaves as most do; with seed 0 GDPO's correctness falls back (docs/log.md).
    """
    prompts: int = 16
    """Per step."""
    samples: int = 4
    """Per prompt."""
    answer_tokens: int = 40
    """Where an answer is cut off. The longest right one still fits."""
    learning_rate: float = 5e-4
    policy: PolicySettings = field(default_factory=PolicySettings)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo left behind."""

    folder: Path
    """Data, policy, a recipe and a run directory per estimator, and the picture."""
    curves: tuple[Curve, ...]
    """One per reward and estimator; empty where an estimator failed."""
    picture: Path | None
    """None where an estimator failed, or matplotlib is not installed."""
    failed: tuple[str, ...] = ()
    """Names of the estimators that failed."""


def run_demo(
    console: Console, settings: DemoSettings | None = None, *, output: Path | None = None
) -> DemoResult:
    """Train a tiny policy on tool calling with GRPO and with GDPO, side by side on the CPU.

    Each estimator is `gdpo train` on a recipe of its own, in a process with one thread; the rewards are
    those of the task `tool_calling`. Only the prompt is shorter than the task's own, which is too
    long for so small a model.

    Args:
        console: Where progress and results are shown.
        settings: None: the usual ones.
        output: A folder that does not exist yet, or is empty. None: `runs/demo`, or, where that is
            taken, `runs/demo-2` and so on.

    Raises:
        ConfigError: `output` is taken, or there are no steps.
        MissingExtraError: A package that training needs is not installed.
        KeyboardInterrupt: Ctrl-C; both estimators were told to save, and have ended.
    """
    settings = settings or DemoSettings()
    started = time.monotonic()
    _check(settings)
    with terminable():
        folder = _claim(output)
        try:
            recipes = _prepare(folder, settings, console)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # nothing in it cost anything yet
            raise
        result = _train_and_report(recipes, folder, settings, console)
    if not result.failed:
        seconds = time.monotonic() - started
        _say(console, f"{ONE_SEED} Another one: gdpo demo --seed {settings.seed + 1}")
        _say(console, f"{seconds:.0f} s; everything is in {folder}")
    return result


def _check(settings: DemoSettings) -> None:
    if settings.steps < 1:
        raise ConfigError(f"the demo needs 1 step or more, got {settings.steps}")
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package, "train", "for the demo, which trains")


def _claim(output: Path | None) -> Path:
    """An empty folder that is ours."""
    if output is not None:
        if output.exists() and not (output.is_dir() and not any(output.iterdir())):
            raise ConfigError(
                f"{output} exists, and nothing is overwritten: give another folder with --output, "
                f"or leave it out for a new one in {_DEFAULT_FOLDER.parent}"
            )
        output.mkdir(parents=True, exist_ok=True)
        return output
    numbered = (Path(f"{_DEFAULT_FOLDER}-{number}") for number in count(2))
    folder = _DEFAULT_FOLDER
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder = next(numbered)
        else:
            return folder


def _prepare(folder: Path, settings: DemoSettings, console: Console) -> list[Recipe]:
    """Put the data and the policy into the folder, and say how each estimator is trained."""
    policy = folder / "policy"
    shutil.copytree(_policy(settings.policy, console), policy)
    data = folder / "requests.jsonl"
    rows = tool_rows(settings.steps * settings.prompts, seed=_ROWS_SEED + settings.seed)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [_recipe(label, folder, data, policy, settings) for label in LABELS]


def _policy(settings: PolicySettings, console: Console) -> Path:
    if (kept := policy_folder(settings)).is_dir():
        _say(console, f"policy: warm-started before, kept in {kept}")
        return kept
    _say(console, f"policy: a tiny Llama, to be warm-started now and kept in {kept}")
    with warm_start_bar(console, settings.steps) as progress:
        return make_policy(settings, progress)


def _recipe(label: str, folder: Path, data: Path, policy: Path, settings: DemoSettings) -> Recipe:
    return Recipe(
        name=label,
        task=_TASK,
        model=str(policy),
        data=DataConfig(source=str(data)),
        advantage=label,
        runs_dir=str(folder),
        batch=BatchConfig(
            prompts=settings.prompts,
            samples=settings.samples,
            micro_batch=settings.prompts * settings.samples,
        ),
        trainer={
            "max_completion_length": settings.answer_tokens,
            "max_steps": settings.steps,
            "learning_rate": settings.learning_rate,
            "lr_scheduler_type": "constant",
            "seed": settings.seed,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_steps": settings.steps,
        },
    )


def _train_and_report(
    recipes: Sequence[Recipe], folder: Path, settings: DemoSettings, console: Console
) -> DemoResult:
    commands = " | ".join(f"gdpo train {folder / recipe.name}.yaml" for recipe in recipes)
    _say(console, f"training, side by side: {commands}")
    try:
        with side_by_side(recipes, folder, partial(_say, console)) as (labels, unwind):
            failed = _follow(labels, settings, console, unwind)
    except KeyboardInterrupt:
        begun = [label.run_dir for label in recipes if RunDirectory(label.run_dir).exists]
        remedy = f" Continue an estimator with: gdpo train {begun[0]} --resume" if begun else ""
        _say(console, f"stopped.{remedy}")
        raise
    for label in failed:
        failure = Text.assemble((f"{label.name.upper()} failed: ", "bold red"), label.why())
        console.print(failure, soft_wrap=True)
    if failed:
        return DemoResult(folder, (), None, tuple(label.name for label in failed))
    found = curves(labels, resolve_task(_TASK).rewards)
    console.print(report_table(found))
    console.print(last_answers(labels))
    page = folder / "report.html"
    write_report(analyse(read_experiment(folder)), page)
    _say(console, f"every reward, finding and rollout on one page: {page}")
    return DemoResult(folder, found, _draw(folder, found, settings, console))


def _follow(
    labels: Sequence[Training], settings: DemoSettings, console: Console, unwind: Callable[[], None]
) -> list[Training]:
    """Show the estimators until both have ended, or one has failed; returns those that failed."""
    views = [ArmView(label.name, settings.steps) for label in labels]
    with labels_display(console, views, resolve_task(_TASK).rewards) as update:
        while True:
            ended = not any(label.running for label in labels)
            failed = [label for label in labels if label.failed]
            for label, view in zip(labels, views, strict=True):
                view.rows = label.rows()
            update()
            if ended or failed:
                return failed
            unwind()
            time.sleep(_POLL_S)


def _draw(
    folder: Path, found: Sequence[Curve], settings: DemoSettings, console: Console
) -> Path | None:
    picture = folder / "curves.png"
    millions = count_parameters(folder / "policy") / 1e6
    setup = (
        f"Tool calling, with the rewards of the task {_TASK}; a Llama of {millions:.1f} M "
        f"parameters; {settings.prompts} prompts × {settings.samples} samples per step; "
        f"seed {settings.seed}."
    )
    try:
        draw_picture(picture, found, setup=setup)
    except MissingExtraError as error:
        _say(console, f"no picture of the curves: {error}")
        return None
    _say(console, f"the curves as a picture: {picture}")
    return picture


def _say(console: Console, text: str) -> None:
    """One line as it is: paths are no markup, and wrapping is the terminal's."""
    console.print(Text(text), soft_wrap=True)
