"""The class whose `compute_advantage` NeMo-RL's trainers call."""

from collections.abc import Mapping
from typing import Any

from gdpo.diagnostics import Watch
from gdpo.integrations._scoring import Computed
from gdpo.integrations.nemo_rl._settings import PLACE, read_settings
from gdpo.integrations.rows import advantages_of, as_groups, reward_columns

COMPONENT = "reward/"
"""Before the name of a reward, in NeMo-RL's batches."""


class AdvantageEstimator:
    """An estimator of ours, with the interface of NeMo-RL's.

    A difference from NeMo-RL's own: a rollout of which no token is trained (its `sample_mask` is 0)
    gets 0 and is left out of every statistic. NeMo-RL masks rollouts that were cut off
    (`overlong_filtering`), whose log-probabilities disagree, that an environment flags, and those
    of prompts that are too long: of these it keeps four tokens, so that several prompts become one.

    Args:
        estimator_config: `grpo.adv_estimator`.
        loss_config: Not used.

    Raises:
        ConfigError: The configuration is wrong.
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
        """Advantage of each row, the same on all of its tokens.

        Args:
            prompt_ids: `[row, token]`; rows of one prompt have equal ones.
            rewards: Only its dtype and device are used: the rewards come one by one.
            mask: `[row, token]`, 1 where a token is trained.
            repeated_batch: `reward/<name>` `[row]` for each reward; NaN: does not apply.
            **_others: What other estimators need.

        Returns:
            `[row, token]`, as NeMo-RL's own: it is masked in the loss.

        Raises:
            ConfigError: The batch lacks a reward that the configuration names.
            DataError: A reward is infinite.
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
            given_by="The environment must return a dict of rewards with 'reward/<name>',",
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
        """Numbers of the latest batch, which NeMo-RL's async trainer logs under this name.

        `gdpo/<reward>/...` for each reward, `gdpo/...` for the batch: those of
        `Diagnosis.metrics()`. A warning among its findings that holds for five batches in a row is
        logged, once.
        """
        if self._computed is not None:
            self._metrics = self._computed.metrics(self._watch)
            self._computed = None
        return self._metrics


def _row_ids(prompt_ids: Any) -> list[bytes]:
    """Something to tell prompts apart by, in time linear in the tokens."""
    return [row.tobytes() for row in prompt_ids.cpu().numpy()]
