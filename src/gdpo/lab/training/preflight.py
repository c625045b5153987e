"""Checks everything about a run that can be checked without training.

`gdpo check` prints the results, and `train` runs the same checks before it loads the model.
"""

import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import nlargest
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gdpo.errors import ConfigError, DataError, GdpoError, MissingExtraError
from gdpo.lab.recipes.batches import BatchPlan, plan_batches, sharing
from gdpo.lab.recipes.data import Rows, check_weights, read_data
from gdpo.lab.recipes.models import (
    LocatedModel,
    Tokenizer,
    context_length,
    locate_model,
    prompt_lengths,
    prompt_text,
    tokenizer_at_hand,
)
from gdpo.lab.recipes.recipe import DataConfig, LoraSettings, Recipe
from gdpo.lab.recipes.resolve import Resolved, resolve
from gdpo.lab.recipes.trainer_fields import build_config
from gdpo.lab.runs.directory import RunDirectory, refuse_runs_dir
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.training.reward_checks import CheckResult, Level, check_rewards
from gdpo.rewards.text import left_open
from gdpo.rewards.weights_column import applies

if TYPE_CHECKING:
    from gdpo.integrations.trl import GDPOConfig

T = TypeVar("T")


PROMPTS_MEASURED = 1000
"""Number of prompts, those with the most characters, that are tokenized to find the longest."""

_LIBRARIES = r"(trl|transformers|torch|accelerate|datasets|huggingface_hub)\b"


@contextmanager
def quiet() -> Generator[None]:
    """Make transformers, TRL, datasets and tokenizers report only errors inside the `with` block.

    Their progress bars are hidden, except those of downloads.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with ExitStack() as after, warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", category=UserWarning, module=_LIBRARIES)
        for name in ("trl", "accelerate", "torch.distributed", "huggingface_hub"):
            logger = logging.getLogger(name)
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        with suppress(ImportError):  # not installed: the code that needs it reports that
            from transformers.utils import logging as hf

            after.callback(hf.set_verbosity, hf.get_verbosity())
            if hf.is_progress_bar_enabled():
                after.callback(hf.enable_progress_bar)
            hf.set_verbosity_error()
            hf.disable_progress_bar()
            # Disabling transformers' bars also hides those of downloads.
            if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
                from huggingface_hub.utils import enable_progress_bars

                enable_progress_bars()
        yield


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """Stores the checked inputs of a training run. The model is not loaded yet."""

    resolved: Resolved
    problems: Sequence[Problem]
    eval_problems: Sequence[Problem] | None
    config: "GDPOConfig"
    batches: BatchPlan
    model: LocatedModel
    tokenizer: Tokenizer | None
    """The tokenizer. None: its model is converted on first use."""
    left_out: str | None
    """A sentence about the training rows that were left out. None: no row was left out."""

    @property
    def recipe(self) -> Recipe:
        """Return the recipe."""
        return self.resolved.recipe


_PREFLIGHT_ROWS = 64
"""Number of rows on which rewards are checked before training. `gdpo check` uses all rows."""

RowCheck: TypeAlias = Callable[[Task, Rows], Iterable[CheckResult]]
"""An additional check of the task and the training rows."""


def check(
    recipe: Recipe | Resolved, *, rows: int | None = None, also: RowCheck | None = None
) -> list[CheckResult]:
    """Check data, rewards, trainer, batches and model, and return all results.

    Args:
        recipe: The recipe, for example from `read_recipe`.
        rows: Number of rows to score the rewards on. None: all rows.
        also: An additional check of the training rows, or None.

    Raises:
        ConfigError: If something in the recipe does not exist, or an option is invalid.
        MissingExtraError: If a package of the task is not installed.
    """
    inspection = _Inspection(resolve(recipe), rows, also)
    with quiet():
        inspection.run()
    return inspection.results


def prepare(resolved: Resolved, *, rows: int = _PREFLIGHT_ROWS) -> CheckedRun:
    """Run the same checks as `check`, but the rewards on the first `rows` rows. Return the job.

    The first error is raised.
    """
    with quiet():
        job = _Inspection(resolved, rows, stop_at_first=True).run()
    assert job is not None, (
        "an inspection that stops at the first error either raises or returns a job"
    )
    return job


@dataclass(slots=True)
class _Inspection:
    """Runs the checks of a recipe, the cheapest first."""

    resolved: Resolved
    rows: int | None
    also: RowCheck | None = None
    stop_at_first: bool = False
    results: list[CheckResult] = field(default_factory=list)

    def run(self) -> CheckedRun | None:
        recipe, task = self.resolved.recipe, self.resolved.task
        rewards = ", ".join(f"{each.name} × {each.weight_in_words}" for each in recipe.rewards)
        self._add(f"recipe: task {recipe.task}, estimator {recipe.advantage}, rewards {rewards}")
        if (lora := recipe.lora) is not None:
            self._attempt(lambda: _described_lora(lora), str)
        if not self.stop_at_first:  # `train` has looked at it already
            self._attempt(self._find_place)
        config = self._attempt(
            lambda: build_config(self.resolved),
            lambda config: (
                f"trainer: TRL {version('trl')} accepts all {len(recipe.trainer)} fields; device "
                f"{config.device.type}"
            ),
        )
        model = self._attempt(
            lambda: locate_model(recipe), lambda model: f"model: {model.description}"
        )
        tokenizer = (
            None if model is None else self._attempt(lambda: tokenizer_at_hand(model, recipe))
        )
        loaded = self._attempt(lambda: self._load(task, recipe.data, "data", tokenizer))
        problems = None if loaded is None else loaded.problems
        eval_data = recipe.eval_data
        eval_problems = (
            None
            if eval_data is None
            else self._attempt(lambda: self._load(task, eval_data, "eval_data", tokenizer).problems)
        )
        if loaded is not None and (also := self.also) is not None:
            self.results += self._attempt(lambda: list(also(task, loaded))) or ()
        for some in (problems, eval_problems):
            if some is not None:
                self._check_rewards(task, some)
        batches = (
            None
            if problems is None or config is None
            else self._attempt(lambda: self._batches(config, len(problems)))
        )
        if model is not None and tokenizer is not None and problems is not None:
            self._attempt(lambda: self._measure_prompts(model, tokenizer, problems, config))
        if problems is None or config is None or batches is None or model is None:
            return None
        return CheckedRun(
            self.resolved,
            problems,
            eval_problems,
            config,
            batches,
            model,
            tokenizer,
            loaded.left_out if loaded else None,
        )

    def _attempt(self, step: Callable[[], T], said: Callable[[T], str] | None = None) -> T | None:
        """Return the result of a step, of which `said` is reported, or report its error."""
        try:
            found = step()
        except GdpoError as error:
            if self.stop_at_first:
                raise
            self._add(str(error), Level.WRONG)
            return None
        if said is not None:
            self._add(said(found))
        return found

    def _add(self, text: str, level: Level = Level.FINE) -> None:
        self.results.append(CheckResult(level, text))

    def _find_place(self) -> None:
        run = RunDirectory(self.resolved.recipe.run_dir)
        if run.exists:
            self._add(
                f"run directory: {run.path} already exists. Resume the run with gdpo train "
                "--resume, or give the new run another name with --set name=...",
                Level.NOTE,
            )
        else:
            refuse_runs_dir(self.resolved.recipe)
            self._add(f"run directory: {run.path} is available")

    def _load(self, task: Task, data: DataConfig, key: str, tokenizer: Tokenizer | None) -> Rows:
        recipe = self.resolved.recipe
        with recipe.at(key, "source"):
            rows = read_data(task, data)
        counted = None
        if data.weights_column is not None:
            with recipe.at(key, "weights_column"):
                counted = check_weights(rows, data.weights_column, self.resolved.names)
        if data.max_prompt_length is not None and tokenizer is not None:
            lengths = prompt_lengths(tokenizer, enumerate(rows.problems, 1), recipe)
            rows = rows.no_longer_than(data.max_prompt_length, lengths)
            if not rows.problems:
                raise DataError(
                    f"{recipe.place(key, 'max_prompt_length')}: every prompt has more than "
                    f"{data.max_prompt_length:,} tokens, and the shortest has "
                    f"{min(lengths):,}. Raise {key}.max_prompt_length"
                )
        for source, count in rows.read.items():
            self._add(f"{key}: task {task.name} can read all {count:,} rows of {source}")
        if rows.left_out:
            self._add(f"{key}: {rows.left_out}", Level.NOTE)
        if counted is not None:
            self._add(f"{key}: {counted}")
            self._note_unused(rows, data)
        return rows if tokenizer is None else self._opened(rows, key, tokenizer)

    def _opened(self, rows: Rows, key: str, tokenizer: Tokenizer) -> Rows:
        """Set what the chat template leaves open in the prompts on which the rewards are tried."""
        recipe = self.resolved.recipe
        tried = [
            replace(p, opened=left_open(prompt_text(tokenizer, p, i, recipe)))
            for i, p in enumerate(rows.problems[: self.rows], 1)
        ]
        if any(problem.opened for problem in tried):
            self._add(
                f"{key}: the chat template of {recipe.initial_model} opens <think>, so a "
                "completion starts after this tag"
            )
        return replace(rows, problems=(*tried, *rows.problems[len(tried) :]))

    def _note_unused(self, rows: Rows, data: DataConfig) -> None:
        for name in self.resolved.names:
            if not any(applies(problem.weights, name) for problem in rows.problems):
                self._add(
                    f"data: {name} applies to no row, so it has no effect: add it to cells of "
                    f"column {data.weights_column!r}, or remove the reward",
                    Level.NOTE,
                )

    def _check_rewards(self, task: Task, problems: Sequence[Problem]) -> None:
        with self.resolved.scorer(on_error="missing") as scorer:
            for found in check_rewards(task, scorer, problems[: self.rows]):
                if isinstance(found, CheckResult):
                    self.results.append(found)
                elif self.stop_at_first:
                    raise found
                else:
                    self._add(str(found), Level.WRONG)

    def _batches(self, config: "GDPOConfig", rows: int) -> BatchPlan:
        batches = plan_batches(config, rows)
        for line in batches.lines():
            self._add(f"batches: {line}")
        able = ", ".join(map(str, sharing(self.resolved.recipe)))
        self._add(f"batches: numbers of processes that can share them equally: {able}")
        if batches.groups == 1 and self.resolved.recipe.advantage == "gdpo":
            self._add(
                "batches: a generation has a single group, so GDPO's batch normalization has "
                "nothing to compare the group with. Raise batch.prompts",
                Level.NOTE,
            )
        steps = batches.total_steps
        schedules: dict[str, dict[str, Any]] = self.resolved.options.get("schedules", {})
        for name, schedule in schedules.items():
            if schedule.get("steps", 0) > steps:
                self._add(
                    f"weight: the schedule of {name} takes {schedule['steps']} steps, but this run "
                    f"has {steps}, so its weight does not reach {schedule['to']:g}. Shorten the "
                    "schedule, or train for more steps",
                    Level.NOTE,
                )
        return batches

    def _measure_prompts(
        self,
        model: LocatedModel,
        tokenizer: Tokenizer,
        problems: Sequence[Problem],
        config: "GDPOConfig | None",
    ) -> None:
        recipe = self.resolved.recipe
        some = nlargest(
            PROMPTS_MEASURED,
            enumerate(problems, 1),
            key=lambda row: sum(len(str(message.get("content"))) for message in row[1].prompt),
        )
        longest = max(prompt_lengths(tokenizer, some, recipe))
        if config is None or config.max_completion_length is None:
            return
        completion = config.max_completion_length
        limit = context_length(model, recipe)
        needed = longest + completion
        measured = f" (measured on the {PROMPTS_MEASURED:,} with the most characters)"
        arithmetic = (
            f"the longest of {len(problems):,} prompts"
            f"{measured if len(problems) > PROMPTS_MEASURED else ''} has {longest:,} tokens; with "
            f"{completion:,} tokens of completion, the total is {needed:,}"
        )
        if limit is not None and needed > limit:
            raise ConfigError(
                f"{recipe.place('trainer', 'max_completion_length')}: {arithmetic}, but the "
                f"model's context is {limit:,} tokens. Lower trainer.max_completion_length, "
                "or set data.max_prompt_length to leave out rows with long prompts"
            )
        self._add(
            f"prompts: {arithmetic}"
            + ("" if limit is None else f"; the model's context is {limit:,} tokens")
        )


def _described_lora(lora: LoraSettings) -> str:
    if find_spec("peft") is None:
        raise MissingExtraError("peft", "lora", "to train with LoRA")
    where = lora.target_modules
    modules = where if isinstance(where, str) else ", ".join(where)
    return f"LoRA: r {lora.r}, alpha {lora.alpha}, dropout {lora.dropout:g}, modules {modules}"
