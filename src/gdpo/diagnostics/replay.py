"""Recomputes the influence of a reward on the same groups with other estimators and weights."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gdpo.advantages import ESTIMATORS
from gdpo.diagnostics.diagnosis import Remedy, Scored
from gdpo.diagnostics.influence import Batch, Influence, pooled, replayed_influence

TRIED = ("gdpo", "per_reward_batch_std")
"""Estimators that are replayed for a reward that has less influence than its weight."""

FACTORS = (2, 3, 5, 10, 20)
"""Factors by which the weight of the reward is raised, until its share is reached."""

_MOST_VALUES = 2**18
"""Number of reward values above which every second step is dropped, so that a replay is fast."""


class ScoredSteps:
    """Keeps the rewards of steps for a replay, evenly thinned if there are too many."""

    def __init__(self) -> None:
        self.steps: dict[int, Scored] = {}
        """The steps that are kept, keyed by their place in the order in which they were added."""
        self._every, self._added, self._values = 1, 0, 0

    def add(self, step: Scored) -> None:
        """Keep the next step, or every second, fourth, ... step of a long run."""
        place = self._added
        self._added += 1
        if place % self._every:
            return
        self.steps[place] = step
        self._values += step.rewards.size
        while self._values > _MOST_VALUES and len(self.steps) > 1:
            self._every *= 2
            self.steps = {at: kept for at, kept in self.steps.items() if at % self._every == 0}
            self._values = sum(kept.rewards.size for kept in self.steps.values())


def remedies(steps: Sequence[Scored], name: str, wanted: float) -> tuple[Remedy, ...]:
    """Return the influence share that a reward has on these steps with other settings.

    Larger weights are tried until the share is `wanted`. The settings are sorted by share, and
    those that do not help are included.
    """
    if not any(name in step.names for step in steps):
        return ()
    batches = [Batch.of(step.rewards, step.weights) for step in steps]
    used = {step.estimator for step in steps}
    others = [Remedy(estimator) for estimator in TRIED if {estimator} != used]
    found = [_tried(steps, batches, name, other) for other in others]
    base = steps[0].estimator if len(used) == 1 and used <= set(_WEIGHTED) else "grpo"
    for factor in FACTORS:
        raised = _tried(steps, batches, name, Remedy(str(base), factor))
        if raised.share >= wanted:
            found.append(raised)
            break
    return tuple(sorted(found, key=lambda remedy: -remedy.share))


def best_remedy(
    found: Sequence[Remedy], share: float, margin: float, limit: float
) -> Remedy | None:
    """Return the setting to use, or None if no setting helps.

    A setting helps if it reaches the limit, or at least twice the present share and more than the
    upper end of that share's interval, and if the new share's interval is above the present share.
    """
    helps = max(_HELPS * share, share + margin)

    def worse(each: Remedy) -> tuple[bool, int, bool]:
        enough = each.share + each.margin >= limit
        return not enough, each.factor, each.estimator != "gdpo"

    better = [
        remedy
        for remedy in found
        if remedy.share >= min(limit, helps) and remedy.lowest > max(share, 0.0)
    ]
    return min(better, key=worse, default=None)


_HELPS = 2.0
"""A replayed setting helps if it gives at least this multiple of the share."""

_WEIGHTED = ("grpo", "grpo_no_std", "rloo", "grpo_batch_std", "grpo_batch_norm", "mo_grpo", *TRIED)
"""Estimators for which a larger weight is replayed. Others need a state or options."""


def _tried(steps: Sequence[Scored], batches: Sequence[Batch], name: str, remedy: Remedy) -> Remedy:
    parts: list[Influence] = []
    for step, batch in zip(steps, batches, strict=True):
        weights = np.array(step.weights, np.float64)
        weights[..., np.array(step.names) == name] *= remedy.factor
        advantages = np.asarray(ESTIMATORS[remedy.estimator](step.rewards, weights), np.float64)
        scores = np.nan_to_num(batch.z)
        part = replayed_influence(advantages, scores, batch.prompt_weights, step.names)
        parts.append(part.after(parts[-1] if parts else None))
    found = pooled(parts)
    column = found.names.index(name)
    return replace(
        remedy,
        share=float(found.shares[column]),
        margin=float(found.margins[column]),
        groups=found.groups,
    )
