"""Writes a recipe that trades correctness for length, small enough to train 24 runs in minutes.

    python -m benchmarks.tradeoff runs/sums
    gdpo compare runs/sums --estimators grpo,gdpo --vary rewards.length.weight=1,0.75,0.5,0.25 \
        --seeds 3
    gdpo report FOLDER --export NUMBERS    # ends.csv has a row for each weight

A problem is a sum of 2 or 4 digits. The policy (0.4 M parameters) either writes only the result,
which is short and mostly wrong for 4 digits, or adds step by step, which is too long. In the
warm-start texts, 85 % of the responses add step by step, and 5 % of the steps are wrong.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.tool_policy._policy import PolicySettings, make_policy, no_progress_bars
from benchmarks.tool_policy._texts import Example

from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe, RewardConfig
from gdpo.lab.tasks import TASKS, Problem

LIMIT = 6
"""Token limit of the length reward: a result alone is shorter, and steps are longer."""

_ROWS, _ROWS_SEED = 2048, 2000


@dataclass(frozen=True, slots=True)
class Sums:
    """Draws warm-start texts."""

    worked: float = 0.85
    """Probability that a response adds step by step."""
    right_step: float = 0.95
    """Probability that the result of a step, or the result alone, is right."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__,)

    def draw(self, rng: np.random.Generator, count: int) -> list[Example]:
        """Return `count` sums with responses."""
        return [self._example(draw_digits(rng), rng) for _ in range(count)]

    def _example(self, digits: list[int], rng: np.random.Generator) -> Example:
        prompt = _prompt(_question(digits))
        if rng.random() > self.worked:
            return Example(prompt, str(self._result(sum(digits), rng)))
        total, steps = digits[0], list[str]()
        for digit in digits[1:]:
            before, total = total, self._result(total + digit, rng)
            steps.append(f"{before}+{digit}={total}.")
        return Example(prompt, f"<think>{' '.join(steps)}</think>\n<answer>{total}</answer>")

    def _result(self, right: int, rng: np.random.Generator) -> int:
        return right if rng.random() < self.right_step else right + int(rng.choice([-1, 1]))


def draw_digits(rng: np.random.Generator) -> list[int]:
    """Return 2 or 4 digits from 1 to 9."""
    return rng.integers(1, 10, size=int(rng.choice([2, 4]))).tolist()


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return rows in the format of GSM8K."""
    rng = np.random.default_rng(seed)
    drawn = [draw_digits(rng) for _ in range(count)]
    return [{"question": _question(each), "answer": f"#### {sum(each)}"} for each in drawn]


def _question(digits: list[int]) -> str:
    return f"{'+'.join(map(str, digits))}="


def _prompt(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _read_row(row: Any) -> Problem:
    """Return GSM8K's problem without the system message, which is too long for the policy."""
    return replace(TASKS["gsm8k"].read_row(row), prompt=_prompt(row["question"]))


SUMS = replace(TASKS["gsm8k"], name="sums", read_row=_read_row)
"""The task of the sums, with GSM8K's rewards."""


def write_recipe(folder: Path, *, steps: int = 40) -> Path:
    """Write a recipe, its policy and its problems, and return the file of the recipe."""
    folder.mkdir(parents=True)
    data = folder / "sums.jsonl"
    made = rows(_ROWS, seed=_ROWS_SEED)
    data.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
    with no_progress_bars():
        policy = make_policy(PolicySettings(texts=Sums(), steps=2000))
    recipe = Recipe(
        task="benchmarks.tradeoff:SUMS",
        model=str(policy),
        data=DataConfig(source=str(data.absolute())),
        rewards=(
            RewardConfig(name="correctness"),
            RewardConfig(name="token_limit", options={"limit": LIMIT}),
        ),
        batch=BatchConfig(prompts=16, samples=8, micro_batch=128),
        trainer={
            "max_completion_length": 32,
            "max_steps": steps,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_steps": steps,
        },
        runs_dir=str(folder.absolute()),
    )
    file = folder / "recipe.yaml"
    file.write_text(recipe.to_yaml(), encoding="utf-8")
    return file


def main() -> None:
    """Write the recipe, and print the command that trains it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="new folder for the recipe, policy and problems")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run (%(default)s)")
    options = parser.parse_args()
    file = write_recipe(options.folder, steps=options.steps)
    print(
        f"gdpo compare {file} --estimators grpo,gdpo "
        "--vary rewards.length.weight=1,0.75,0.5,0.25 --seeds 3"
    )


if __name__ == "__main__":
    main()
