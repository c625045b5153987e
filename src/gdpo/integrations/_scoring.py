"""Computes the advantages of a framework's batch, and the metrics that gdpo adds to its log."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gdpo._shapes import Float
from gdpo.advantages import Weights
from gdpo.diagnostics import Watch, diagnose
from gdpo.integrations._settings import Settings
from gdpo.integrations.rows import Groups, advantages_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]
    weights: Weights
    """The weights in force in this batch, `[reward]` or `[prompt, reward]`."""
    changing: Mapping[str, float]
    """`AdvantageRule.metrics()` of this batch."""
    watched: str | None = None
    """Name of the framework's estimator, if it computed the advantages. None: the settings' rule
    did."""
    of_turns: Float[np.ndarray, "prompt sample turn"] | None = None
    """Advantages of each turn, whose means are `advantages`. None: each rollout has only one."""

    def metrics(self, watch: Watch) -> dict[str, float]:
        """Return the metrics of each reward (`gdpo/<reward>/...`) and of the batch (`gdpo/...`).

        The result contains `Diagnosis.metrics()` with the detail of the settings, the mean of each
        reward, which the frameworks do not log, and the metrics of the estimator's state. The
        method also logs each warning that `watch` reports.
        """
        found = diagnose(
            self.groups.rewards,
            self.weights,
            self.settings.names,
            estimator=self.watched or self.settings.rule.name,
            advantages=self.advantages,
        )
        diagnosis = watch.update(found)
        for finding in watch.due:
            logger.warning("gdpo: %s", finding.line)
        metrics = {
            **{f"rewards/{r.name}/mean": r.mean for r in diagnosis.rewards if r.mean is not None},
            **diagnosis.metrics(detail=self.settings.detail),
            **self.changing,
        }
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}


def compute(groups: Groups, settings: Settings) -> Computed:
    rule = settings.rule
    own = groups.weights
    weights = rule.weights_in_force(settings.weights if own is None else own)
    changing = rule.metrics(settings.names, settings.weights)
    advantages = advantages_of(groups, settings)
    if not rule.wants_turns:
        return Computed(settings, groups, advantages, weights, changing)
    assert groups.turns is not None, "an estimator for turns without turns"
    means = groups.turns.means(advantages)
    return Computed(settings, groups, means, weights, changing, of_turns=advantages)
