"""Measures what requested influence shares cost and bring, on the toys.

    python -m benchmarks.set_points_price [--seeds 20]
    python -m benchmarks.set_points_price --replay runs/NAME/rollouts ...

Each toy is trained with `gdpo` and fixed equal weights, with `per_reward_batch_std`, and with
`gdpo` and equal requested shares. The tables show, in parts of the reward's range and as paired
differences from fixed weights (mean ± 95 %, Student's t over the seeds): the mean reward over the
run, and the reward at its end. The share error is |realized - requested|, largest over the rewards,
with the realized share over the steps of a window in which every weight follows its request: no
reward is released, constant or at a bound.

`--replay` gives the recorded rewards of runs, step by step, to `gdpo` with equal requested shares,
and to `gdpo` with equal weights. The rewards stay those of the run.
"""

import argparse
from unittest import mock

import numpy as np
from benchmarks.toys._run import run_toy
from benchmarks.toys._toys import TOYS

from gdpo._student import student_quantile
from gdpo.advantages import AdvantageRule
from gdpo.analysis.steps import batch_of
from gdpo.diagnostics import diagnose
from gdpo.diagnostics.influence import Influence, pooled
from gdpo.rollouts.readers import read_rollout_files

TOYS_WITH_EQUAL_WEIGHTS = ("escape", "sparse", "duplicated", "saturating")
WINDOW = (20, 100)
"""First and last step of the window, in which shares are measured."""


class Recorded:
    """Stores the influence of each step of each seed, and whether the weights followed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.steps: dict[int, list[tuple[Influence, bool]]] = {}

    def calls(self, original):
        """Return a replacement of `AdvantageRule.__call__` that keeps the influence of a batch."""

        def called(rule, rewards, weights, **options):
            advantages = original(rule, rewards, weights, **options)
            step = diagnose(rewards, weights, self.names, advantages=advantages).influence
            follows = all(p.status in AdvantageRule.FOLLOWING for p in rule.set_points)
            self.steps.setdefault(id(rule), []).append((step, follows))
            return advantages

        return called

    def errors(self, requested: float) -> tuple[list[float], list[float], int]:
        """Return the share error and its margin for each seed, and the number of counted steps."""
        errors, margins, counted = [], [], 0
        for steps in self.steps.values():
            kept = [step for step, follows in steps[WINDOW[0] : WINDOW[1]] if follows]
            counted += len(kept)
            if len(kept) < 2:
                continue
            window = pooled(kept)
            worst = int(np.argmax(np.abs(window.shares - requested)))
            errors.append(abs(window.shares[worst] - requested))
            margins.append(window.margins[worst])
        return errors, margins, counted


def trained(toy, estimator, seeds, options=None):
    """Return the curves of each reward as parts of its range, and the recorded influence."""
    kept = Recorded(toy.names)
    with mock.patch.object(AdvantageRule, "__call__", kept.calls(AdvantageRule.__call__)):
        found = run_toy(toy, estimator, seeds=seeds, options=options)
    curves = [(found[m.name] - m.low) / (m.high - m.low) for m in toy.measured]
    return np.stack(curves, axis=-1), kept


def interval(values):
    """Return mean and half-width of the 95 % interval as text."""
    values = np.asarray(values)
    half = student_quantile(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():+.3f} ± {half:.3f}".replace("-", "\N{MINUS SIGN}")


def replay(folder: str) -> None:
    """Print the share errors for the recorded rewards of a run."""
    batches = [b for t in read_rollout_files(folder) if (b := batch_of(t)) is not None]
    table = batches[0].table
    names, share = table.names, 1 / len(table.names)
    low, high = ([table.ranges[name][end] for name in names] for end in (0, 1))
    for what, options in (
        ("equal weights", {}),
        ("requested shares", {"influence": dict.fromkeys(names, share)}),
    ):
        kept = Recorded(names)
        with mock.patch.object(AdvantageRule, "__call__", kept.calls(AdvantageRule.__call__)):
            rule = AdvantageRule("gdpo", names, options, low=low, high=high)
            for batch in batches:
                rule(batch.rewards, [1.0] * len(names))
                rule.update(batch.rewards, [1.0] * len(names))
        errors, margins, counted = kept.errors(share)
        within = "" if errors[0] <= 0.03 + margins[0] else "not "
        print(
            f"{folder}: {what}: share error {errors[0]:.3f}, half-width {margins[0]:.3f}, "
            f"{counted} of {min(len(batches), WINDOW[1]) - WINDOW[0]} steps; {within}within .03 + "
            "half-width"
        )


def main() -> None:
    """Print a table for each toy, or the share errors of recorded runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--replay", nargs="+")
    options = parser.parse_args()
    if options.replay:
        for folder in options.replay:
            replay(folder)
        return
    seeds = range(options.seeds)
    for name in TOYS_WITH_EQUAL_WEIGHTS:
        toy = TOYS[name]
        share = 1 / len(toy.names)
        fixed, of_fixed = trained(toy, "gdpo", seeds)
        cases = {
            "per_reward_batch_std": trained(toy, "per_reward_batch_std", seeds),
            "requested shares": trained(
                toy, "gdpo", seeds, {"influence": dict.fromkeys(toy.names, share)}
            ),
        }
        print(f"\n{name} ({toy.steps} steps)")
        for reward, column in zip(toy.names, fixed.T, strict=True):
            run, end = column.T.mean(axis=1).mean(), column[-1].mean()
            print(f"  fixed weights: {reward} {run:.3f} over the run, {end:.3f} at the end")
        print(f"  fixed weights: share error {np.mean(of_fixed.errors(share)[0]):.3f}")
        for case, (curves, kept) in cases.items():
            for k, reward in enumerate(toy.names):
                over = interval((curves - fixed)[..., k].mean(axis=1))
                end = interval((curves - fixed)[:, -1, k])
                print(f"  {case}: {reward} {over} over the run, {end} at the end")
            errors, margins, counted = kept.errors(share)
            if errors:
                within = np.mean(np.array(errors) <= 0.03 + np.array(margins))
                print(
                    f"  {case}: share error {np.mean(errors):.3f}, half-width "
                    f"{np.mean(margins):.3f}; within .03 + half-width in {within:.0%} of "
                    f"{len(errors)} seeds, {counted / len(seeds):.0f} counted steps per seed"
                )


if __name__ == "__main__":
    main()
