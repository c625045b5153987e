"""Defines the class whose `compute_advantage` NeMo-RL's trainers call."""

from collections.abc import Mapping
from typing import Any

from gdpo.diagnostics import Watch
from gdpo.integrations._scoring import Computed
from gdpo.integrations.nemo_rl._settings import PLACE, read_settings
from gdpo.integrations.rows import advantages_of, as_groups, reward_columns

COMPONENT = "reward/"
"""Prefix of a reward's name in NeMo-RL's batches."""


class AdvantageEstimator:
    """Computes advantages with an estimator of gdpo, behind NeMo-RL's interface.

    Difference from NeMo-RL's own estimators: a rollout without trained tokens (`sample_mask` 0)
    gets the advantage 0 and is left out of every statistic. NeMo-RL masks truncated rollouts
    (`overlong_filtering`), rollouts whose log-probabilities disagree, rollouts that an environment
    flags, and rollouts of prompts that are too long. It keeps only four tokens of such a prompt, so
    that different prompts can look equal.

    Args:
        estimator_config: `grpo.adv_estimator`.
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
            prompt_ids: `[row, token]`. Rows of one prompt are equal.
            rewards: Only the dtype and device are used; the separate rewards come from
                `repeated_batch`.
            mask: `[row, token]`, 1 for trained tokens.
            repeated_batch: `reward/<name>` `[row]` for each reward. NaN: the reward does not apply.
            **_others: Arguments that only other estimators use.

        Returns:
            Advantages `[row, token]`. As with NeMo-RL's own estimators, the loss applies the mask.

        Raises:
            ConfigError: If the batch lacks a reward that the configuration names.
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
        advantages = advantages_of(groups, self.settings)
        self._computed = Computed(self.settings, groups, advantages)
        return rewards.new_tensor(groups.per_row(advantages)).unsqueeze(-1).expand(mask.shape)

    @property
    def last_metrics(self) -> dict[str, float]:
        """The metrics of the latest batch. NeMo-RL's async trainer logs this attribute.

        These are `Diagnosis.metrics()`: `gdpo/<reward>/...` for each reward, `gdpo/...` for the
        batch. Logs each warning that `gdpo.diagnostics.Watch` reports, once.
        """
        if self._computed is not None:
            self._metrics = self._computed.metrics(self._watch)
            self._computed = None
        return self._metrics


def _row_ids(prompt_ids: Any) -> list[bytes]:
    """Return a hashable id of each prompt, in time linear in the number of tokens."""
    return [row.tobytes() for row in prompt_ids.cpu().numpy()]
