"""Numbers of a batch for the loggers of a framework."""

import logging
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.diagnostics import Watch, diagnose
from gdpo.integrations._rows import Groups
from gdpo.integrations._settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    """A batch whose advantages have been computed."""

    settings: Settings
    groups: Groups
    advantages: Float[np.ndarray, "prompt sample"]

    def metrics(self, watch: Watch) -> dict[str, float]:
        """`gdpo/<reward>/...` for each reward, `gdpo/...` for the batch.

        Those of `Diagnosis.metrics()`, and of the estimator's state if it has one. What the watch
        warns of (a finding that holds for several batches in a row) is logged.
        """
        rule, names = self.settings.rule, self.settings.names
        diagnosis = diagnose(
            self.groups.rewards,
            self.settings.weights,
            names,
            estimator=rule.name,
            advantages=self.advantages,
        )
        for finding in watch.update(diagnosis.findings):
            logger.warning("%s: %s", finding.message, finding.remedy)
        metrics = {**diagnosis.metrics(), **rule.metrics(names)}
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}
