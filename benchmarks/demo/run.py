"""Runs the demo: prepares data and policy, trains with GRPO and GDPO, and reports the results."""

import json
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from benchmarks.demo._policy import PolicySettings, count_parameters, make_policy, policy_folder
from benchmarks.demo._report import (
    Curve,
    conclusions,
    curves,
    draw_picture,
    last_responses,
    report_table,
)
from benchmarks.demo._texts import Carelessness
from benchmarks.demo._tools import tool_rows
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gdpo._naming import did_you_mean
from gdpo._terminal import Shown
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.process import (
    Training,
    describe_ending,
    signals_held,
    start_training,
    stop_trainings,
    terminable,
)
from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe
from gdpo.lab.report import write_report
from gdpo.lab.runs.directory import RunDirectory
from gdpo.lab.tasks import resolve_task
from gdpo.rewards import Reward

_BLOCKS = "▁▂▃▄▅▆▇█"

_TREND_WIDTH = 20

_EVERY = 10
"""Number of steps between the printed lines of an estimator, if the output is not a terminal."""


@dataclass(slots=True)
class TrainingView:
    """Stores the metrics of one training run for the display."""

    name: str
    """Name of the estimator."""
    total_steps: int
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def step(self) -> int:
        """Number of finished steps."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def means(self, reward: Reward) -> list[float]:
        """Return the mean reward of each step."""
        return [row[f"rewards/{reward.name}/mean"] for row in self.rows]


@contextmanager
def warm_start_bar(console: Console, total: int) -> Generator[Callable[[int], None]]:
    """Show a progress bar for the supervised phase.

    Yields:
        A function that takes the number of finished steps.
    """
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
def trainings_display(
    console: Console, views: Sequence[TrainingView], rewards: Sequence[Reward]
) -> Generator[Callable[[], None]]:
    """Show the progress of all training runs while the context is active.

    Yields:
        A function that redraws the display. Call this function after the views have changed.
    """
    if not console.is_terminal:
        shown = dict.fromkeys((view.name for view in views), 0)
        yield lambda: _print_lines(console, views, rewards, shown)
        return
    started = time.monotonic()
    with Live(
        console=console,
        get_renderable=lambda: Shown(_dashboard(views, rewards, time.monotonic() - started)),
        refresh_per_second=4,
    ) as live:
        yield live.refresh


def _dashboard(
    views: Sequence[TrainingView], rewards: Sequence[Reward], seconds: float
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


def _cells(view: TrainingView, reward: Reward) -> tuple[str, str]:
    means = view.means(reward)
    return (f"{means[-1]:.2f}" if means else "–", trend(means, reward.low, reward.high))


def trend(values: Sequence[float], low: float, high: float, width: int = _TREND_WIDTH) -> str:
    """Draw values from `low` to `high` as a line of block characters, with the newest at the right.

    >>> trend([0.0, 0.5, 1.0, 1.0], 0.0, 1.0, width=2)
    '▃█'
    """
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)] if width else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((mean - low) / (high - low) * top)] for mean in means)


def _print_lines(
    console: Console,
    views: Sequence[TrainingView],
    rewards: Sequence[Reward],
    shown: dict[str, int],
) -> None:
    for view in views:
        due = view.step - view.step % _EVERY if view.step < view.total_steps else view.step
        if due > shown[view.name]:
            shown[view.name] = due
            console.print(Text(_line(view, view.rows[due - 1], rewards)), soft_wrap=True)


def _line(view: TrainingView, row: Mapping[str, Any], rewards: Sequence[Reward]) -> str:
    means = ", ".join(f"{r.name} {row[f'rewards/{r.name}/mean']:.2f}" for r in rewards)
    return f"{view.name.upper()} step {row['step']} of {view.total_steps}: {means}"


ESTIMATORS = ("grpo", "gdpo")
"""The compared estimators, in display order."""


@contextmanager
def side_by_side(
    recipes: Sequence[Recipe], folder: Path, say: Callable[[str], None]
) -> Generator[tuple[list[Training], Callable[[], None]]]:
    """Start one training process per recipe. When the context exits, stop unfinished processes.

    A stopped process saves a checkpoint before it exits.

    Args:
        recipes: One recipe per training run.
        folder: Folder for recipe files and log files, which are named after the runs.
        say: Function that shows a message to the user, called while runs are being stopped.

    Yields:
        The training runs, and a function to call regularly, which raises if a signal has arrived.
    """
    with signals_held() as unwind:
        trainings: list[Training] = []
        try:
            for recipe in recipes:  # `finally` must see each process once it has started
                training = start_training(recipe, folder, environment={"HF_HUB_OFFLINE": "1"})
                trainings.append(training)
            yield trainings, unwind
        finally:
            _stop([training for training in trainings if training.running], say)


def _stop(trainings: Sequence[Training], say: Callable[[str], None]) -> None:
    killed = stop_trainings(trainings, say)
    for training in trainings:
        say(f"{training.name}: {describe_ending(training.run, killed=training in killed)}")


_TASK = "tool_calling"
_DEFAULT_FOLDER = Path("runs") / "demo"
_NEEDED = ("torch", "transformers", "trl", "accelerate", "datasets")
_POLL_S = 0.25

_ROWS_SEED = 1000
"""Offset added to the demo's seed, so that its requests differ from the warm-start requests."""


@dataclass(frozen=True, slots=True)
class Start:
    """Defines a starting point for training."""

    well_formed: float
    """Share of the warm-start texts that have the required format, from 0 to 1."""
    learning_rate: float
    """Constant learning rate of AdamW."""


STARTS: Mapping[str, Start] = {
    "rare": Start(well_formed=0.01, learning_rate=2e-4),
    "common": Start(well_formed=0.04, learning_rate=5e-4),
}
"""Starting points by name. The first is the default."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Defines one run of the demo.

    Raises:
        ConfigError: If `start` is unknown or `steps` is below 1.
    """

    start: str = "rare"
    """A key of `STARTS`. The start defines how often the policy uses the format before training."""
    steps: int = 150
    """Number of optimizer steps per estimator."""
    seed: int = 1
    """Random seed for the warm start, the requests and the sampling, the same for both estimators.

    Results vary more between warm starts than between training seeds, so each seed draws its own.
    """
    prompts: int = 16
    """Prompts per step."""
    samples: int = 4
    """Samples per prompt."""
    response_tokens: int = 40
    """Maximum response length in tokens. The longest reference answer still fits."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    """Settings of the model and the warm start, except the warm-start texts, which `start`
    defines, and the seed."""

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ConfigError(f"unknown start {self.start!r}: {did_you_mean(self.start, STARTS)}")
        if self.steps < 1:
            raise ConfigError(f"steps must be 1 or more, got {self.steps}")

    @property
    def learning_rate(self) -> float:
        """Constant learning rate of AdamW."""
        return STARTS[self.start].learning_rate

    @property
    def warm_started(self) -> PolicySettings:
        """Settings of the policy, with the warm-start texts of `start` and the seed of the run."""
        texts = Carelessness(well_formed=STARTS[self.start].well_formed)
        return replace(self.policy, texts=texts, seed=self.seed)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Stores the paths of the demo's files and the measured curves."""

    folder: Path
    """Folder with the data, the policy, the plot, and one recipe and one run per estimator."""
    curves: tuple[Curve, ...]
    """One curve per reward and estimator. Empty if an estimator failed."""
    picture: Path | None
    """Plot of the curves. None: an estimator failed, or matplotlib is not installed."""
    failed: tuple[str, ...] = ()
    """Names of the estimators that failed."""


def run_demo(
    console: Console, settings: DemoSettings | None = None, *, output: Path | None = None
) -> DemoResult:
    """Train a tiny policy on tool calling with GRPO and with GDPO, side by side on the CPU.

    Each estimator runs in its own `gdpo train` process with one thread. The rewards come from the
    `tool_calling` task. The prompt is shorter than that task's prompt, which is too long for such a
    small model.

    Args:
        console: Console for progress and results.
        settings: Settings of the demo. None: the defaults.
        output: Folder for all files. The folder must be empty or not exist. None: `runs/demo`, or
            the first unused name of `runs/demo-2`, `runs/demo-3` and so on.

    Raises:
        ConfigError: If `output` is not empty.
        MissingExtraError: If a package that training needs is not installed.
        KeyboardInterrupt: If Ctrl-C was pressed. The error is raised after both training runs have
            stopped.
    """
    settings = settings or DemoSettings()
    started = time.monotonic()
    _check_packages()
    with terminable():
        folder = _claim(output)
        try:
            recipes = _prepare(folder, settings, console)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # the folder contains no run yet
            raise
        result = _train_and_report(recipes, folder, settings, console)
    if not result.failed:
        for line in (*conclusions(result.curves), *_next_commands(settings)):
            _say(console, line)
        _say(console, f"{time.monotonic() - started:.0f} s. All files are in {folder}")
    return result


def _next_commands(settings: DemoSettings) -> list[str]:
    """Return lines with the commands for the next warm start and for the other start."""
    [other] = STARTS.keys() - {settings.start}
    return [
        f"This is one warm start (seed {settings.seed}), and another may differ: "
        f"{_command(replace(settings, seed=settings.seed + 1))}",
        f"With the format in {_texts_with_format(other)}: "
        f"{_command(replace(settings, start=other))}",
    ]


def _command(settings: DemoSettings) -> str:
    defaults, given = DemoSettings(), ("start", "seed", "steps")
    values = {name: getattr(settings, name) for name in given}
    options = [f"--{k} {value}" for k, value in values.items() if value != getattr(defaults, k)]
    return " ".join(["python -m benchmarks.demo", *options])


def _texts_with_format(start: str) -> str:
    return f"{100 * STARTS[start].well_formed:g} % of the warm-start texts"


def _check_packages() -> None:
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package, "train", "to run the demo")


def _claim(output: Path | None) -> Path:
    """Return an empty folder. Create the folder if it does not exist."""
    if output is not None:
        if output.exists() and not (output.is_dir() and not any(output.iterdir())):
            raise ConfigError(
                f"--output {output} is not empty, and the demo does not overwrite files. Choose "
                f"another folder, or omit --output to use a new folder in {_DEFAULT_FOLDER.parent}/"
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
    """Write data and policy to the folder, and return one recipe per estimator."""
    policy = folder / "policy"
    shutil.copytree(_policy(settings, console), policy)
    data = folder / "requests.jsonl"
    rows = tool_rows(settings.steps * settings.prompts, seed=_ROWS_SEED + settings.seed)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [_recipe(name, folder, data, policy, settings) for name in ESTIMATORS]


def _policy(settings: DemoSettings, console: Console) -> Path:
    policy = settings.warm_started
    _say(console, f"start: {settings.start}, format in {_texts_with_format(settings.start)}")
    if (kept := policy_folder(policy)).is_dir():
        _say(console, f"policy: a tiny Llama, warm-started earlier, from {kept}")
        return kept
    _say(console, f"policy: a tiny Llama; warm-starting it now, to be cached in {kept}")
    with warm_start_bar(console, policy.steps) as progress:
        return make_policy(policy, progress)


def _recipe(name: str, folder: Path, data: Path, policy: Path, settings: DemoSettings) -> Recipe:
    return Recipe(
        name=name,
        task=_TASK,
        model=str(policy),
        data=DataConfig(source=str(data)),
        advantage=name,
        runs_dir=str(folder),
        batch=BatchConfig(
            prompts=settings.prompts,
            samples=settings.samples,
            micro_batch=settings.prompts * settings.samples,
        ),
        trainer={
            "max_completion_length": settings.response_tokens,
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
    _say(console, f"training side by side: {commands}")
    try:
        with side_by_side(recipes, folder, partial(_say, console)) as (trainings, unwind):
            failed = _follow(trainings, settings, console, unwind)
    except KeyboardInterrupt:
        begun = [recipe.run_dir for recipe in recipes if RunDirectory(recipe.run_dir).exists]
        remedy = "; ".join(f"gdpo train {run} --resume" for run in begun)
        _say(console, f"stopped.{f' To resume: {remedy}' if remedy else ''}")
        raise
    for training in failed:
        failure = Text.assemble((f"{training.name.upper()} failed: ", "bold red"), training.why())
        console.print(failure, soft_wrap=True)
    if failed:
        return DemoResult(folder, (), None, tuple(training.name for training in failed))
    found = curves(trainings, resolve_task(_TASK).rewards)
    console.print(report_table(found))
    console.print(last_responses(trainings))
    page = folder / "report.html"
    write_report(analyse(read_experiment(folder)), page)
    _say(console, f"report with all rewards, findings and rollouts: {page}")
    return DemoResult(folder, found, _draw(folder, found, settings, console))


def _follow(
    trainings: Sequence[Training],
    settings: DemoSettings,
    console: Console,
    unwind: Callable[[], None],
) -> list[Training]:
    """Show progress until all runs have ended or a run has failed. Return the failed runs."""
    views = [TrainingView(training.name, settings.steps) for training in trainings]
    with trainings_display(console, views, resolve_task(_TASK).rewards) as update:
        while True:
            ended = not any(training.running for training in trainings)
            failed = [training for training in trainings if training.failed]
            for training, view in zip(trainings, views, strict=True):
                view.rows = training.run.read_steps()
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
        f"Task {_TASK}; a Llama with {millions:.1f} M parameters, format in "
        f"{_texts_with_format(settings.start)}; learning rate "
        f"{settings.learning_rate:g};\n{settings.prompts} prompts × {settings.samples} samples per "
        f"step; seed {settings.seed}."
    )
    try:
        draw_picture(picture, found, setup=setup)
    except MissingExtraError as error:
        _say(console, f"could not draw the curves: {error}")
        return None
    _say(console, f"plot of the curves: {picture}")
    return picture


def _say(console: Console, text: str) -> None:
    """Print one line without wrapping, and without markup because paths may contain brackets."""
    console.print(Text(text), soft_wrap=True)
