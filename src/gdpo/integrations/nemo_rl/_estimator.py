"""Defines the class whose `compute_advantage` NeMo-RL's trainers call."""

from collections.abc import Mapping
from typing import Any

from gdpo.diagnostics import Watch
from gdpo.integrations._scoring import Computed, compute
from gdpo.integrations.nemo_rl._settings import PLACE, read_settings
from gdpo.integrations.rows import as_groups, reward_columns

COMPONENT = "reward/"
"""Prefix of reward names in NeMo-RL's batches."""


class AdvantageEstimator:
    """Computes advantages for NeMo-RL with a gdpo estimator.

    NeMo-RL masks truncated rollouts (`overlong_filtering`), rollouts whose log-probabilities differ
    between generation and training, rollouts that an environment flags, and rollouts of prompts
    that are too long. NeMo-RL keeps only four tokens of a prompt that is too long, so different
    prompts can look identical. Therefore, unlike NeMo-RL's own estimators, this class leaves masked
    rollouts (`sample_mask` 0) out of every statistic and gives them an advantage of 0.

    Args:
        estimator_config: The `grpo.adv_estimator` section of NeMo-RL's configuration.
        loss_config: Not used.

    Raises:
        ConfigError: If the configuration is invalid.
    """

    def __init__(self, estimator_config: Any, loss_config: Any) -> None:  # noqa: ARG002
        self.settings = read_settings(estimator_config)
        self._watch = Watch()
        self._computed: Computed | None = None
        self._metrics: dict[str, float] = {}

    def compute_advantage(
        self,
        prompt_ids: Any,
        rewards: Any,
        mask: Any,
        repeated_batch: Mapping[str, Any],
        **_others: Any,
    ) -> Any:
        """Return the advantage of each row, repeated for all of its tokens.

        Args:
            prompt_ids: Prompt tokens `[row, token]`. Rows with identical tokens form a group.
            rewards: Only the dtype and device are used; the separate rewards come from
                `repeated_batch`.
            mask: Array `[row, token]` with 1 for trained tokens.
            repeated_batch: NeMo-RL's batch, with an array `[row]` under `reward/<name>` for each
                reward. NaN means that the reward does not apply.
            **_others: Arguments that only NeMo-RL's own estimators use.

        Returns:
            Advantages `[row, token]`. As with NeMo-RL's own estimators, the loss applies the mask.

        Raises:
            ConfigError: If the configuration lists a reward that is not in the batch.
            DataError: If a reward is infinite.
        """
        columns = {
            key.removeprefix(COMPONENT): repeated_batch[key].double().cpu().numpy()
            for key in repeated_batch
            if key.startswith(COMPONENT)
        }
        values = reward_columns(
            columns,
            self.settings.names,
            asked_by=f"{PLACE}.gdpo_reward_keys",
            given_by="the environment, as 'reward/<name>'",
        )
        trained = mask.bool().sum(-1).cpu().numpy()
        self._computed, self._metrics = None, {}
        if not trained.any():
            return rewards.new_zeros(mask.shape)
        groups = as_groups(values, _row_ids(prompt_ids), trained, padding=trained == 0)
        self._computed = compute(groups, self.settings)
        rows = rewards.new_tensor(groups.per_row(self._computed.advantages))
        return rows.unsqueeze(-1).expand(mask.shape)

    @property
    def last_metrics(self) -> dict[str, float]:
        """Metrics of the latest batch, which NeMo-RL's async trainer logs.

        The names are `gdpo/<reward>/...` for reward metrics and `gdpo/...` for batch metrics; see
        `Diagnosis.metrics()`. The first access after a batch also logs each warning that
        `gdpo.diagnostics.Watch` reports.
        """
        if self._computed is not None:
            self._metrics = self._computed.metrics(self._watch)
            self._computed = None
        return self._metrics


def _row_ids(prompt_ids: Any) -> list[bytes]:
    """Return a hashable prompt id for each row, in time linear in the number of tokens."""
    return [row.tobytes() for row in prompt_ids.cpu().numpy()]
