"""Decides the hypotheses of research/preregistration/2026-11-26.md from the results of runs.

All functions take arrays with one value per seed, in the same order of seeds.
"""

from dataclasses import dataclass, replace

import numpy as np

from gdpo.lab.experiments.statistics import log_rank_scores, paired_difference, permutation_test

ALPHA = 0.05

MEASURES = ("correct", "equation", "tags")
"""Measures of an evaluation, one per reward."""

STEPS = 5.0
"""Largest difference in steps that counts as none."""

SHARE = 0.05
"""Largest difference in a share of right or well-formed responses that counts as none."""


@dataclass(frozen=True)
class Times:
    """Stores when each run reached the threshold."""

    steps: np.ndarray
    """Step at which each run reached the threshold, or the number of steps of a whole run."""
    reached: np.ndarray

    @property
    def known(self):
        """Whether all runs but one reached the threshold, so that their steps can be compared."""
        return np.count_nonzero(~self.reached) <= 1


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
    found = Decision(what, -mirrored.value, -mirrored.high, -mirrored.low, mirrored.verdict)
    return _if_known(found, ours, theirs)


def as_late(what, ours, theirs):
    """Decide whether our runs reach the threshold at the same time, up to `STEPS` (H3)."""
    return _if_known(equal(what, ours.steps, theirs.steps, STEPS), ours, theirs)


def _if_known(decision, ours, theirs):
    return decision if ours.known and theirs.known else replace(decision, verdict="undecided")


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
            as_late("gdpo - mo_grpo, steps to 80 % of the tags", gdpo, mo_grpo),
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
    """Return the decision about a paired difference, undecided if a run has no value."""
    interval = paired_difference(ours, theirs)
    low, high = interval.low, interval.high
    if np.isnan(ours - theirs).any():
        return Decision(what, interval.value, low, high, "undecided")
    if np.allclose(ours - theirs, interval.value, rtol=0, atol=1e-12):  # no interval, but no doubt
        low = high = interval.value
    return Decision(what, interval.value, low, high, decide(low, high))
