"""Numbers of a batch for the loggers of a framework."""

import logging
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.diagnostics import Diagnosis, Watch, diagnose
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

        These are `Diagnosis.metrics()` and the numbers of the estimator's state if it has one.
        Influence shares are over the last groups. Warnings that last are logged, each once.
        """
        diagnosis = watch.update(self._diagnosis())
        for finding in watch.due:
            logger.warning("%s: %s", finding.message, finding.remedy)
        rule = self.settings.rule
        metrics = {**diagnosis.metrics(), **rule.metrics(self.settings.names)}
        return {f"gdpo/{key.partition('/')[2]}": value for key, value in metrics.items()}

    def _diagnosis(self) -> Diagnosis:
        return diagnose(
            self.groups.rewards,
            self.settings.rule.weights_in_force(self.settings.weights),
            self.settings.names,
            estimator=self.settings.rule.name,
            advantages=self.advantages,
        )
