"""The tasks whose runs are forked: tool calling, stories, and sums beside a noisy reward."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.study._maths import STORIES, story_rows
from benchmarks.study._recipes import OFTEN, maths_recipe, tools_recipe
from benchmarks.tool_policy._policy import PolicySettings, make_policy
from benchmarks.tool_policy._texts import Example as Text
from benchmarks.tool_policy._tools import tool_rows

from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe, RewardConfig
from gdpo.lab.tasks import TASKS, Problem, Task
from gdpo.rewards import Example, Reference, Reward

_FRESH_SEED = 3000
"""Seed of the rows of the fresh samples. No run is trained on these rows."""

_OPENERS = ("well", "so", "hm", "right", "okay", "now", "then", "yes")


@dataclass(frozen=True, slots=True)
class CarelessSums:
    """Draws sums with careless answers, for the warm start of a policy."""

    right: float = 0.55
    """Share of the answers with the right number."""
    brief: float = 0.06
    """Share of the answers that are only a number."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__,)

    def draw(self, rng: np.random.Generator, count: int) -> list[Text]:
        """Return `count` questions with careless answers."""
        return [Text(_asked(row["question"]), self._answer(row, rng)) for row in _sums(rng, count)]

    def _answer(self, row: dict[str, str], rng: np.random.Generator) -> str:
        number = int(row["answer"])
        if rng.random() > self.right:
            number = max(0, number + int(rng.choice([-2, -1, 1, 2])))
        return (
            f"{number}" if rng.random() < self.brief else f"{rng.choice(_OPENERS)}, it is {number}."
        )


def _sums(rng: np.random.Generator, count: int) -> list[dict[str, str]]:
    """Return questions such as `case 417: 4 + 8?`. The case makes nearly every prompt unique."""
    drawn = zip(rng.integers(100, 1000, count), rng.integers(0, 10, (count, 2)), strict=True)
    return [{"question": f"case {n}: {a} + {b}?", "answer": f"{a + b}"} for n, (a, b) in drawn]


def sum_rows(count: int, *, seed: int) -> list[dict[str, str]]:
    """Return rows with question and answer."""
    return _sums(np.random.default_rng(seed), count)


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _numbers(completion: str) -> list[str]:
    return "".join(c if c.isdigit() else " " for c in completion).split()


correctness = Reward(
    "correctness",
    lambda completion, reference: 3.0 if _numbers(completion) == [reference["answer"]] else -3.0,
    low=-3.0,
    high=3.0,
    examples=(Example("it is 12.", {"answer": "12"}, 3.0),),
)
brevity = Reward(
    "brevity",
    lambda completion, _: float(completion.strip().isdigit()),
    low=0.0,
    high=1.0,
    examples=(Example("12", {}, 1.0), Example("it is 12.", {}, 0.0)),
)


def score_noise(completion: str, reference: Reference) -> float:
    """Return a number from 0 to 1 that nothing but question and completion determine: a hash."""
    digest = hashlib.sha256(
        f"{reference['question']}\n{completion}".encode(errors="surrogatepass")
    ).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


noise = Reward("noise", score_noise, low=0.0, high=1.0)
"""A reward that varies in nearly every group, and that no policy can raise on new questions."""

SUMS = Task(
    name="sums",
    columns=(("question", "answer"),),
    read_row=lambda row: Problem(_asked(row["question"]), {k: row[k] for k in row}),
    rewards=(correctness,),
    gold_completion=lambda reference: reference["answer"],
    bad_completion="no idea",
)


def sums_recipe(folder: Path, *, policy: int) -> Recipe:
    """Return the recipe of the sums: correctness, brevity and noise."""
    settings = PolicySettings(
        texts=CarelessSums(), width=64, inner_width=128, steps=400, batch=32, seed=policy
    )
    tools = tools_recipe(folder, well_formed=OFTEN, learning_rate=1e-3, policy=policy)
    rows = folder / "sums.jsonl"
    if not rows.exists():
        rows.write_text("".join(f"{json.dumps(row)}\n" for row in sum_rows(4096, seed=2000)))
    here = f"{__name__}"
    return tools.model_copy(
        update={
            "task": f"{here}:SUMS",
            "model": str(make_policy(settings)),
            "data": DataConfig(source=str(rows)),
            "rewards": (
                RewardConfig(name="correctness"),
                RewardConfig(name=f"{here}:brevity"),
                RewardConfig(name=f"{here}:noise"),
            ),
            "batch": BatchConfig(prompts=16, samples=8, micro_batch=128),
            "trainer": {**tools.trainer, "max_completion_length": 12},
        }
    )


@dataclass(frozen=True, slots=True)
class ForkedTask:
    """Describes a task: its recipe for a warm start, and the problems of its fresh samples."""

    recipe: Callable[[Path, int], Recipe]
    """Function of the folder of the data and the seed of the warm start."""
    task: Task
    rows: Callable[..., Sequence[Any]]
    fresh: int
    """Number of fresh problems. With the samples per prompt, at least 2,000 rollouts."""

    def problems(self) -> list[Problem]:
        """Return the fresh problems."""
        return [self.task.read_row(row) for row in self.rows(self.fresh, seed=_FRESH_SEED)]


FORKED = {
    "tools": ForkedTask(
        lambda folder, policy: tools_recipe(folder, well_formed=OFTEN, policy=policy),
        TASKS["tool_calling"],
        tool_rows,
        512,
    ),
    "stories": ForkedTask(
        lambda folder, policy: maths_recipe(folder, samples=4, policy=policy),
        STORIES,
        story_rows,
        512,
    ),
    "sums": ForkedTask(
        lambda folder, policy: sums_recipe(folder, policy=policy), SUMS, sum_rows, 256
    ),
}
