"""Decides the registered hypotheses (docs/preregistration/2026-11-26.md) from the results of runs.

All functions take arrays with one value per seed, in the same order of seeds.
"""

from dataclasses import dataclass

import numpy as np

from gdpo.experiments.statistics import log_rank_scores, paired_difference, permutation_test

ALPHA = 0.05

MEASURES = ("correct", "equation", "tags")
"""Measures of an evaluation, one per reward."""

STEPS = 5.0
"""Largest difference in steps that counts as none."""

SHARE = 0.05
"""Largest difference in a share of right or well-formed responses that counts as none."""


@dataclass(frozen=True)
class Times:
    """Stores the step at which each run reached the threshold, or its last step."""

    steps: np.ndarray
    reached: np.ndarray


@dataclass(frozen=True)
class Decision:
    """Stores a difference with its interval, and what follows for the hypothesis."""

    what: str
    value: float
    low: float
    high: float
    verdict: str
    """`supported`, `refuted` or `undecided`."""


def earlier(what, ours, theirs):
    """Decide whether our runs reach the threshold earlier (H1).

    Supported: the permutation test of the log-rank scores gives p < 0.05, and our runs are earlier.
    Refuted: p < 0.05, and they are later. The interval is that of the paired difference in steps.
    """
    scores = log_rank_scores((ours.steps, theirs.steps), (ours.reached, theirs.reached))
    p = permutation_test(*scores).p
    ahead = np.sum(scores[0]) > 0
    found = ("supported" if ahead else "refuted") if p < ALPHA else "undecided"
    return _decision(f"{what}, p = {p:.4f}", ours.steps, theirs.steps, lambda *_: found)


def no_lower(what, ours, theirs, margin):
    """Decide whether our values are no lower than theirs, up to a margin (H2).

    Supported: the interval lies above -margin. Refuted: it lies below -margin.
    """

    def decide(low, high):
        return "supported" if low > -margin else "refuted" if high < -margin else "undecided"

    return _decision(what, ours, theirs, decide)


def no_later(what, ours, theirs):
    """Decide whether our runs reach the threshold no later, up to `STEPS` (H4)."""
    mirrored = no_lower(what, -ours.steps, -theirs.steps, STEPS)
    return Decision(what, -mirrored.value, -mirrored.high, -mirrored.low, mirrored.verdict)


def equal(what, ours, theirs, margin):
    """Decide whether two values are equal, up to a margin (H3).

    Supported: the interval lies within the margin. Refuted: it lies outside.
    """

    def decide(low, high):
        if -margin < low and high < margin:
            return "supported"
        return "refuted" if low > margin or high < -margin else "undecided"

    return _decision(what, ours, theirs, decide)


def decide(times, shares):
    """Decide all hypotheses.

    Args:
        times: For each estimator, the `Times` at which its runs reached 80 % of the tags.
        shares: For each estimator and each of `MEASURES`, the share of held-out
            responses of each run, from 0 to 1.

    Returns:
        For each hypothesis, its decisions. A hypothesis is supported if all its decisions are, and
        refuted if one of them is.
    """
    gdpo, grpo, mo_grpo, dara = (
        times[name] for name in ("gdpo", "grpo", "mo_grpo", "dara_symmetric")
    )
    held_out = {
        measure: (shares["gdpo"][measure], shares["mo_grpo"][measure]) for measure in MEASURES
    }
    return {
        "H1": [earlier("gdpo - grpo, steps to 80 % of the tags", gdpo, grpo)],
        "H2": [
            no_lower(
                "gdpo - grpo, held-out correctness",
                shares["gdpo"]["correct"],
                shares["grpo"]["correct"],
                SHARE,
            )
        ],
        "H3": [
            equal("gdpo - mo_grpo, steps to 80 % of the tags", gdpo.steps, mo_grpo.steps, STEPS),
            *(
                equal(f"gdpo - mo_grpo, held-out {measure}", *pair, SHARE)
                for measure, pair in held_out.items()
            ),
        ],
        "H4": [no_later("dara_symmetric - gdpo, steps to 80 % of the tags", dara, gdpo)],
    }


def verdict(decisions):
    """Return the verdict of a hypothesis from those of its decisions."""
    found = {each.verdict for each in decisions}
    return "refuted" if "refuted" in found else found.pop() if len(found) == 1 else "undecided"


def _decision(what, ours, theirs, decide):
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    interval = paired_difference(ours, theirs)
    low, high = interval.low, interval.high
    if np.ptp(ours - theirs) == 0:  # the interval is unknown, but every pair agrees
        low = high = interval.value
    return Decision(what, interval.value, low, high, decide(low, high))
