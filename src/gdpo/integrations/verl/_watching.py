"""Watches verl's own estimators, and gives verl's gdpo its rewards on the V1 trainer.

No function in this module changes an advantage.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gdpo._shapes import Float
from gdpo.integrations._scoring import Computed
from gdpo.integrations._turns import summed
from gdpo.integrations.rows import as_text
from gdpo.integrations.verl._carried import Carried
from gdpo.integrations.verl._run import Run
from gdpo.integrations.verl.settings import is_plain


def observe(run: Run, algorithm: Any, data: Any, carried: Carried) -> None:
    """Store a batch's rewards and verl's advantages for the metrics and the record.

    `carried` has the separate rewards of the same rows.
    """
    settings, mask = run.settings(algorithm), data.batch["response_mask"]
    groups = carried.groups(settings, data.non_tensor_batch["uid"], mask)
    name = as_text(algorithm.get("adv_estimator"))
    rows = of_rows(run, data.batch["advantages"], mask, name)
    advantages = groups.per_rollout(rows, carried.outputs)
    run.latest = Computed(settings, groups, advantages, settings.weights, {}, watched=name)
    if is_plain(name) or "token_level_scores" not in data.batch.keys():  # noqa: SIM118
        return
    scores = data.batch["token_level_scores"].sum(-1).cpu().numpy()
    scores = groups.per_rollout(scores, carried.outputs)
    total = np.nansum(groups.rewards * np.asarray(settings.weights), axis=-1)
    if not np.allclose(scores, total, rtol=1e-3, atol=1e-3 * max(np.abs(scores).max(), 1e-30)):
        weights = dict(zip(settings.names, settings.weights, strict=True))
        run.warn_once(
            f"the scalar reward, which verl's estimator uses, is not the sum of the rewards with "
            f"the weights {weights}: gdpo compares the influence of each reward with these "
            "weights. Set +algorithm.gdpo_reward_weights to those of compute_score"
        )


def of_rows(run: Run, advantages: Any, mask: Any, estimator: str) -> Float[np.ndarray, " row"]:
    """Return the advantage of each row: the mean over its trained tokens, if they differ."""
    trained = mask.bool()
    first = advantages.gather(1, trained.int().argmax(1, keepdim=True))
    same = ((advantages == first) | ~trained).all(1)
    means = (advantages.double() * trained).sum(1) / trained.sum(1).clamp(min=1)
    if not bool(same.all()):
        run.warn_once(
            f"{estimator} gives the tokens of a rollout different advantages: gdpo's metrics and "
            "record use their mean over the rollout's trained tokens"
        )
    rows = first[:, 0].double().where(same & trained.any(1), means)
    return rows.cpu().numpy()


@contextmanager
def delivered(run: Run, algorithm: Any, data: Any, carried: Carried) -> Generator[None]:
    """Add, inside the `with` block, what verl's own gdpo reads but verl's V1 trainer omits."""
    names = [key for key in algorithm.get("gdpo_reward_keys") or () if key in carried.columns]
    added = set(names) - set(data.non_tensor_batch)
    if not added or "prompts" in data.batch.keys():  # noqa: SIM118  a TensorDict is no mapping
        yield  # this verl passes the rewards itself
        return
    run.warn_once(
        "algorithm.adv_estimator=gdpo is verl's own estimator. gdpo passes it the rewards "
        f"{', '.join(names)}, without which it fails on this trainer. The formula stays verl's"
    )
    mask = data.batch["response_mask"]
    data.batch["prompts"], data.batch["attention_mask"] = mask[:, :0], mask
    for name in added:
        values = np.asarray(summed(carried.columns[name]), dtype=np.float32)
        # verl's gdpo also normalizes padding rows.
        padding = carried.padding
        data.non_tensor_batch[name] = values if padding is None else np.where(padding, 0, values)
    try:
        yield
    finally:
        for name in ("prompts", "attention_mask"):
            del data.batch[name]
        for name in added:
            del data.non_tensor_batch[name]
