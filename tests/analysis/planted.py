"""Runs whose true influence is known, written as TRL writes them: one file a step, without ranges.

    python -m tests.analysis.planted

prints the influence shares and the verdict of `gdpo analyze` for each of them (half a minute).
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.advantages import ESTIMATORS
from gdpo.analysis import analyze
from gdpo.rollouts.readers import read_rollout_files


@dataclass(frozen=True)
class Run:
    """A run whose rewards are drawn."""

    draw: Callable[[np.random.Generator, int, tuple[int, int]], dict[str, np.ndarray]]
    """Returns the rewards `[prompt, sample]` of a step, by name."""
    calls_for: tuple = ()
    """Action of the verdict, kind of the finding, and the rewards that it is about."""
    influence: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The lowest and the highest influence share that a reward may have."""
    steps: int = 200
    size: tuple[int, int] = (16, 8)
    estimator: str = "grpo"


def _bernoulli(random, size, rate):
    return (random.random(size) < rate).astype(float)


def _all_or_nothing(random, step, size):
    solved = _bernoulli(random, (size[0], 1), 0.5)
    return {"correctness": solved + np.zeros(size), "format": _bernoulli(random, size, 0.5)}


def _format_is_learned(random, step, size):
    return {
        "correctness": _bernoulli(random, size, 0.03),
        "format": _bernoulli(random, size, 0.999),
    }


def _judge(random, step, size):
    judge = 50 + 20 * random.standard_normal(size)
    return {"correctness": _bernoulli(random, size, 0.5), "judge": judge}


def _easy_and_hard(random, step, size):
    """A prompt is solved nearly always or nearly never."""
    rate = random.choice([0.004, 0.996], (size[0], 1))
    tone = 0.5 + 0.05 * random.standard_normal(size)
    return {"correctness": _bernoulli(random, size, rate), "tone": tone}


_NOTHING = ("nothing", None, [])

PLANTED = {
    "correctness is all or nothing per prompt, format varies within groups": Run(
        _all_or_nothing, ("check", "constant", ["correctness"]), {"format": (1, 1)}
    ),
    "format is learned, correctness is rare": Run(
        _format_is_learned, _NOTHING, {"correctness": (0.95, 1)}
    ),
    "a judge with a std of 20 beside correctness": Run(
        _judge, ("train", "ignored", ["correctness"]), {"judge": (0.95, 1)}
    ),
    "easy and hard prompts; tone varies slightly in every group": Run(
        _easy_and_hard, ("train", "ignored", ["correctness"]), {"correctness": (0.02, 0.05)}
    ),
}
"""The four runs of 200 steps of 16 groups of 8, trained with GRPO and weights 1 and 1."""


def _paper(rate):
    def draw(random, step, size):
        found = rate(step) if callable(rate) else rate
        correctness = random.integers(-3, 4, size).astype(float)
        return {"correctness": correctness, "format": _bernoulli(random, size, found)}

    return draw


def _of_kinds(kinds):
    makers = {
        "b": lambda random, size: _bernoulli(random, size, 0.5),
        "d": lambda random, size: _bernoulli(random, size, random.beta(2, 2, (size[0], 1))),
        "u": lambda random, size: random.random(size),
        "n": lambda random, size: 50 + 15 * random.standard_normal(size),
        "3": lambda random, size: random.integers(-3, 4, size).astype(float),
    }

    def draw(random, step, size):
        return {f"r{k}": makers[kind](random, size) for k, kind in enumerate(kinds)}

    return draw


_NEEDED = ("train", "ignored", ["format"])

QUESTIONS = {
    "tool calling with GRPO: format rises from 0 to 4 % in 90 steps": Run(
        _paper(lambda step: 0.04 * step / 90), _NEEDED, {}, steps=90, size=(16, 4)
    ),
    **{
        f"the paper's pair: format 0/1 at {100 * rate:g} %, correctness -3 to 3": Run(
            _paper(rate), _NEEDED, {}, steps=32, size=(8, samples)
        )
        for rate, samples in ((0.02, 8), (0.05, 4))
    },
    "healthy: two rewards of 0 or 1": Run(_of_kinds("bb"), _NOTHING, {}, steps=32, size=(8, 8)),
    "healthy: three rewards of 0 or 1, by difficulty": Run(
        _of_kinds("ddd"), _NOTHING, {}, steps=32, size=(8, 8)
    ),
    "healthy: four units, trained with gdpo": Run(
        _of_kinds("d3un"), _NOTHING, {}, steps=32, size=(8, 8), estimator="gdpo"
    ),
}
"""Runs on which the rule of docs/explanation/do_i_need_this.md must give the right answer."""


def write_run(folder, run, seed=0):
    """Write the completions of a run as TRL does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for step in range(1, run.steps + 1):
        rewards = run.draw(random, step, run.size)
        stacked = np.stack(list(rewards.values()), axis=-1)
        advantages = ESTIMATORS[run.estimator](stacked, np.ones(len(rewards)))
        prompts = np.repeat([f"{step} {prompt}" for prompt in range(run.size[0])], run.size[1])
        columns = {
            "step": np.full(stacked[..., 0].size, step),
            "prompt": prompts,
            "completion": ["x"] * len(prompts),
            **{name: values.ravel() for name, values in rewards.items()},
            "advantage": np.asarray(advantages).ravel(),
        }
        pq.write_table(pa.table(columns), folder / f"completions_{step:05d}.parquet")
    return folder


def analyzed(run, seed=0, **options):
    """Return the analysis of a run."""
    with tempfile.TemporaryDirectory() as folder:
        return analyze(read_rollout_files([write_run(Path(folder), run, seed)]), **options)


def main():
    for name, run in {**PLANTED, **QUESTIONS}.items():
        analysis = analyzed(run)
        (found,) = analysis.runs
        shares = ", ".join(f"{r.name} {100 * r.influence_share:.0f} %" for r in found.rewards)
        sys.stdout.write(f"{name}\n  influence: {shares}\n  {analysis.verdict(found).sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
