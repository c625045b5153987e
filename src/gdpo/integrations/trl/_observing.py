import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gdpo.diagnostics import Diagnosis, Watch, diagnose

logger = logging.getLogger(__name__)


class Observer:
    def __init__(
        self,
        trainer: Any,
        estimator: str | None,
        detail: str,
        *,
        low: Mapping[str, float | None] | None = None,
        high: Mapping[str, float | None] | None = None,
    ) -> None:
        self.watch = Watch()
        self._trainer, self._estimator = trainer, estimator
        self._detail, self._low, self._high = detail, low, high

    def diagnosis(
        self,
        rewards: torch.Tensor,
        weights: Any,
        names: Sequence[str],
        advantages: torch.Tensor,
    ) -> Diagnosis:
        found = diagnose(
            rewards,
            weights,
            names,
            estimator=self._estimator,
            advantages=advantages,
            low=self._low,
            high=self._high,
        )
        if not self._trainer.model.training:
            return found
        found = self.watch.update(found)
        if self._trainer.accelerator.is_main_process:
            for finding in self.watch.due:
                step = self._trainer.state.global_step + 1
                logger.warning("gdpo, step %d: %s", step, finding.line)
        return found

    def metrics(self, diagnosis: Diagnosis) -> dict[str, float]:
        by_trl = {f"diagnostics/{reward.name}/mean" for reward in diagnosis.rewards}
        by_trl.add("diagnostics/zero_advantage_groups")  # TRL: frac_reward_zero_std
        metrics = diagnosis.metrics(detail=self._detail)
        return {key: value for key, value in metrics.items() if key not in by_trl}
