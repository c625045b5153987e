"""Watches verl's own estimators, and gives verl's gdpo its rewards on the V1 trainer.

No function in this module changes an advantage.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from gdpo._shapes import Float
from gdpo.integrations._scoring import Computed
from gdpo.integrations._turns import summed
from gdpo.integrations.rows import as_text
from gdpo.integrations.verl._estimator import Carried, keep
from gdpo.integrations.verl.settings import is_plain, read_settings

logger = logging.getLogger(__name__)


@lru_cache
def warn_once(message: str) -> None:
    """Log a warning, unless this process has logged it before."""
    logger.warning(message)


def observe(algorithm: Any, data: Any, carried: Carried) -> None:
    """Store the rewards of a batch, with the advantages that verl computed, for metrics and record.

    Args:
        algorithm: The `algorithm` section of verl's configuration.
        data: verl's batch, with its advantages.
        carried: The separate rewards of the same rows.

    Raises:
        ConfigError: If the configuration lists a reward that is not in the batch.
        DataError: If a reward is not a number.
    """
    settings, mask = read_settings(algorithm), data.batch["response_mask"]
    groups = carried.groups(settings, data.non_tensor_batch["uid"], mask)
    name = as_text(algorithm.get("adv_estimator"))
    rows = of_rows(data.batch["advantages"], mask, name)
    advantages = groups.per_rollout(rows, carried.outputs)
    keep(Computed(settings, groups, advantages, settings.weights, {}, watched=name))
    if not is_plain(name) and "token_level_scores" in data.batch.keys():  # noqa: SIM118
        scores = data.batch["token_level_scores"].sum(-1).cpu().numpy()
        _compare_sum(settings, groups, groups.per_rollout(scores, carried.outputs))


def of_rows(advantages: Any, mask: Any, estimator: str) -> Float[np.ndarray, " row"]:
    """Return the advantage of each row: that of its trained tokens, or their mean if they differ.

    Args:
        advantages: Advantage of each token, `[row, token]`.
        mask: 1 for trained tokens, `[row, token]`.
        estimator: Name of the estimator, used in a warning.
    """
    trained = mask.bool()
    first = advantages.gather(1, trained.int().argmax(1, keepdim=True))
    same = ((advantages == first) | ~trained).all(1)
    means = (advantages.double() * trained).sum(1) / trained.sum(1).clamp(min=1)
    if not bool(same.all()):
        warn_once(
            f"{estimator} gives the tokens of a rollout different advantages: gdpo's metrics and "
            "record use their mean over the rollout's trained tokens"
        )
    rows = first[:, 0].double().where(same & trained.any(1), means)
    return rows.cpu().numpy()


def _compare_sum(settings: Any, groups: Any, scores: Float[np.ndarray, "prompt sample"]) -> None:
    """Warn if the scalar reward, which the estimator uses, is another sum of the rewards."""
    total = np.nansum(groups.rewards * np.asarray(settings.weights), axis=-1)
    if not np.allclose(scores, total, rtol=1e-3, atol=1e-3 * max(np.abs(scores).max(), 1e-30)):
        weights = dict(zip(settings.names, settings.weights, strict=True))
        warn_once(
            f"the scalar reward, which verl's estimator uses, is not the sum of the rewards with "
            f"the weights {weights}: gdpo compares the influence of each reward with these "
            "weights. Set +algorithm.gdpo_reward_weights to those of compute_score"
        )


@contextmanager
def delivered(algorithm: Any, data: Any, carried: Carried) -> Generator[None]:
    """Add what verl's own gdpo reads and verl's V1 trainer leaves out, inside the `with` block.

    Args:
        algorithm: The `algorithm` section of verl's configuration.
        data: verl's batch.
        carried: The separate rewards of the same rows.
    """
    names = [key for key in algorithm.get("gdpo_reward_keys") or () if key in carried.columns]
    added = set(names) - set(data.non_tensor_batch)
    if not added or "prompts" in data.batch.keys():  # noqa: SIM118  a TensorDict is no mapping
        yield  # this verl passes the rewards itself
        return
    warn_once(
        "algorithm.adv_estimator=gdpo is verl's own estimator. gdpo hands it the rewards "
        f"{', '.join(names)}, without which it fails on this trainer. The formula stays verl's"
    )
    mask = data.batch["response_mask"]
    data.batch["prompts"], data.batch["attention_mask"] = mask[:, :0], mask
    for name in added:
        data.non_tensor_batch[name] = _filled(carried, name)
    try:
        yield
    finally:
        for name in ("prompts", "attention_mask"):
            del data.batch[name]
        for name in added:
            del data.non_tensor_batch[name]


def _filled(carried: Carried, name: str) -> np.ndarray:
    """Return a reward of all rows, with 0 for padding rows, which verl's gdpo also normalizes."""
    values = np.asarray(summed(carried.columns[name]), dtype=np.float32)
    return values if carried.padding is None else np.where(carried.padding, 0, values)
