"""Trains tiny policies with length penalties, and shows what each does to correctness and length.

    python -m benchmarks.length_penalty run       # 6 recipes from 5 warm starts
    python -m benchmarks.length_penalty table     # the table of docs/how-to/length_penalty.md

The recipes are those of the page. research/preregistration/2026-11-29-length-penalty.md says what
is run and what counts as no harm. A record that exists is not run again.
"""

import argparse
import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks._shown import half_width, interval, row
from benchmarks.forks import _tasks
from benchmarks.forks._fork import trained
from benchmarks.forks._measure import Fresh
from benchmarks.forks._tasks import FORKED, SUMS, CarelessSums, sums_recipe
from benchmarks.forks._unit import write_record
from benchmarks.tool_policy._policy import PolicySettings, make_policy
from benchmarks.tool_policy._texts import Example as Text

from gdpo import Reward
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.recipes.yaml import dump_yaml
from gdpo.lab.training.preflight import prepare, quiet

HERE = "benchmarks.length_penalty"
RECORDS = Path(__file__).parents[1] / "research" / "length_penalty"

RECIPES = {
    "no penalty": """\
advantage: grpo
rewards: [correctness]
""",
    "for everybody": """\
advantage: grpo
rewards: [correctness, my_rewards:length]
""",
    "among right answers": """\
advantage: gdpo
rewards:
  - correctness
  - name: my_rewards:length
    gate: {on: correctness, at_least: 1, otherwise: missing}
""",
    "by pass rate": """\
advantage: gdpo
rewards:
  - correctness
  - name: my_rewards:length
    gate: {on: correctness, at_least: 0.5, of: group}
""",
    "an advantage of its own": """\
advantage: gdpo
rewards: [correctness, my_rewards:length]
""",
    "overlong only": """\
advantage: grpo
rewards:
  - correctness
  - {name: soft_overlong, options: {maximum: 12, buffer: 4}}
""",
}
"""Recipes by name. `my_rewards` is this module."""

WITHOUT = "no penalty"
STEPS, WARM_STARTS = 60, range(2, 7)
MARGIN = 0.1
"""A recipe does not hurt if the interval of the change in correctness lies above -MARGIN."""

length = Reward("length", lambda n, _: -float(min(n, 8192)), low=-8192.0, high=0.0, of="tokens")

correctness = replace(
    _tasks.correctness,
    function=lambda text, reference: float(_tasks.correctness.function(text, reference) > 0),
    low=0.0,
    high=1.0,
    examples=(),
)
TASK = replace(SUMS, rewards=(correctness,))
FRESH = replace(FORKED["sums"], task=TASK)


@dataclass(frozen=True, slots=True)
class LongIsRight:
    """Draws sums whose answers are right more often if they are sentences, for the warm starts."""

    brief: float = 0.3
    right: tuple[float, float] = (0.4, 0.9)
    """Share of right answers among brief answers and among sentences."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Source files that define the texts."""
        return (__file__, *CarelessSums().sources)

    def draw(self, rng: np.random.Generator, count: int) -> list[Text]:
        """Return `count` questions with careless answers."""
        kinds = [
            CarelessSums(right, brief) for right, brief in zip(self.right, (1, 0), strict=True)
        ]
        long = rng.random(count) >= self.brief
        return [text for each in long for text in kinds[int(each)].draw(rng, 1)]


def recipe_of(name: str, warm_start: int, folder: Path) -> Recipe:
    """Return one of the recipes for the sums, from a warm start."""
    settings = PolicySettings(
        texts=LongIsRight(), width=64, inner_width=128, steps=550, batch=32, seed=warm_start
    )
    stem = f"{name.replace(' ', '-')}-{warm_start}"
    whole = sums_recipe(folder, policy=1).model_dump(mode="json", exclude={"advantage", "rewards"})
    whole["trainer"] |= {"seed": warm_start, "max_steps": STEPS}
    whole |= {"task": f"{HERE}:TASK", "model": str(make_policy(settings)), "name": stem}
    file = folder / f"{stem}.yaml"
    own = RECIPES[name].replace("my_rewards", HERE)
    file.write_text(dump_yaml(whole | {"runs_dir": str(folder)}) + own, encoding="utf-8")
    return read_recipe(file)


def measured(name: str, warm_start: int, folder: Path) -> dict[str, Any]:
    """Train, and return the mean correctness and length on fresh problems, before and after."""
    recipe = recipe_of(name, warm_start, folder)
    shutil.rmtree(folder / recipe.name, ignore_errors=True)
    with quiet():
        run = trained(prepare(resolve(recipe), rows=4), None, {STEPS})
    weights = {"after": run.models[STEPS]}
    if name == WITHOUT:  # the same for all recipes
        weights["before"] = type(run.trainer.model).from_pretrained(recipe.model).state_dict()
    fresh = Fresh(run, FRESH, recipe.batch.samples)
    drawn = {when: fresh.draw(each) for when, each in weights.items()}
    shutil.rmtree(run.checkpoints.parent)
    return {
        when: {
            "right": float(samples.rewards[..., 0].mean()),
            "tokens": float(np.mean([len(each) for each in samples.completions])),
        }
        for when, samples in drawn.items()
    }


def run(records: Path) -> None:
    """Train with every recipe from every warm start, and write a record of each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        for warm_start in WARM_STARTS:
            for name in RECIPES:
                file = records / f"{name.replace(' ', '-')}-{warm_start}.json"
                if not file.exists():
                    write_record(measured(name, warm_start, Path(folder)), file)


def print_table(records: Path) -> None:
    """Print what each recipe did, with intervals over the warm starts, and its outcome."""
    row("penalty", ["right", "change", "tokens", "outcome"], head=True)
    base = _ends(records, WITHOUT, "after")
    starts = {"before training": _ends(records, WITHOUT, "before"), WITHOUT: base}
    for name, ends in starts.items():
        row(name, [interval(ends[0]), "", interval(ends[1], 1), ""])
    for name in (name for name in RECIPES if name != WITHOUT):
        ends = _ends(records, name, "after")
        right, tokens = ends - base
        change = f"{right.mean():+.2f} ± {half_width(right):.2f}"
        shorter = ", shorter" if tokens.mean() + half_width(tokens) < 0 else ""
        shown = [interval(ends[0]), change, interval(ends[1], 1), outcome(right) + shorter]
        row(name, shown)


def outcome(change: Any) -> str:
    """Return what the interval of a change in correctness says."""
    mean, half = float(np.mean(change)), half_width(change)
    if mean + half < 0:
        return "hurt"
    return "not hurt" if mean - half > -MARGIN else "not decided"


def _ends(records: Path, name: str, when: str) -> Any:
    """Return the correctness and the length of each warm start, `[2, warm start]`."""
    files = [records / f"{name.replace(' ', '-')}-{seed}.json" for seed in WARM_STARTS]
    read = [json.loads(file.read_text(encoding="utf-8"))[when] for file in files]
    return np.array([[each["right"] for each in read], [each["tokens"] for each in read]])


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: %(default)s")
    options = parser.parse_args()
    (run if options.what == "run" else print_table)(options.records)


if __name__ == "__main__":
    main()
