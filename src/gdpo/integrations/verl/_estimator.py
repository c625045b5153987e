"""The function that verl calls for advantages, and what is handed to it past verl's own arguments.

verl gives an estimator the rewards as one number per token, already summed. The components travel
beside: `carrying` holds them while verl computes advantages.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from gdpo.diagnostics import Watch
from gdpo.errors import ConfigError
from gdpo.integrations._metrics import Computed
from gdpo.integrations._rows import Columns, advantages_of, as_groups, reward_columns
from gdpo.integrations.verl._rows import last_outputs
from gdpo.integrations.verl._settings import read_settings


@dataclass(frozen=True, slots=True)
class Carried:
    """What an estimator needs of a batch and verl does not pass."""

    columns: Columns
    """Rewards of each row, by name."""
    keys: Sequence[str] | None = None
    """verl's names of the rows, where a rollout may have several."""
    padding: Bool[np.ndarray, " row"] | None = None
    """Rows that only fill the batch up."""


_carried: ContextVar[Carried | None] = ContextVar("carried", default=None)
_latest: list[Computed] = []
_watch = Watch()


@contextmanager
def carrying(carried: Carried) -> Generator[None]:
    """Hand this to the estimator that is called within; what was handed over before stays."""
    token = _carried.set(_carried.get() or carried)
    try:
        yield
    finally:
        _carried.reset(token)


def compute_advantages(
    token_level_rewards: Any,
    response_mask: Any,
    config: Any,
    index: Any,
    non_tensor_batch: Columns | None = None,
    batch: Any = None,  # noqa: ARG001  verl passes these two by name
    reward_baselines: Any = None,  # noqa: ARG001
) -> tuple[Any, Any]:
    """Advantages of the estimator that the configuration names, on each token that is trained.

    Args:
        token_level_rewards: Only its dtype and device are used: the rewards come one by one.
        response_mask: `[row, token]`, 1 where a token is trained.
        config: `algorithm` of verl's configuration.
        index: The id of each row's prompt.
        non_tensor_batch: Rewards of each row by name, where verl passes them.
        batch: Not used.
        reward_baselines: Not used.

    Returns:
        Advantages `[row, token]`, 0 where none is trained; and returns, which are the same.

    Raises:
        ConfigError: The configuration is wrong, or names a reward that the batch does not have.
        DataError: A reward is infinite or no number.
    """
    settings = read_settings(config)
    carried = _carried.get()
    if carried is None and non_tensor_batch is not None:
        carried = Carried(non_tensor_batch)
    if carried is None:
        raise ConfigError(
            "the rewards did not reach the estimator: this trainer computes advantages by none of "
            "the ways that gdpo knows. Use verl's own trainers, or pass non_tensor_batch"
        )
    groups = as_groups(
        reward_columns(
            carried.columns,
            settings.names,
            asked_by="algorithm.gdpo_reward_keys",
            given_by="compute_score must return a dict with 'score' and",
        ),
        list(index),
        response_mask.sum(-1).cpu().numpy(),
        outputs=None if carried.keys is None else last_outputs(carried.keys),
        padding=carried.padding,
    )
    advantages = advantages_of(groups, settings)
    _latest[:] = [Computed(settings, groups, advantages)]
    rows = token_level_rewards.new_tensor(groups.per_row(advantages))
    tokens = rows.unsqueeze(-1) * response_mask
    return tokens, tokens


def latest() -> Computed:
    """The batch whose advantages were computed last."""
    return _latest[-1]


def metrics_of_latest() -> dict[str, float]:
    """Numbers of the latest batch for verl's loggers; each batch is told of once.

    `gdpo/<reward>/...` for each reward, `gdpo/...` for the batch: those of `Diagnosis.metrics()`.
    A warning among its findings that holds for five batches in a row is logged, once.
    """
    if not _latest:
        return {}
    return _latest.pop().metrics(_watch)
