"""The function that verl calls for advantages, and what is handed to it past verl's own arguments.

verl gives an estimator the rewards as one number per token, already summed. The components travel
beside: `carrying` holds them while verl computes advantages.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool

from gdpo.diagnostics import Watch
from gdpo.errors import ConfigError
from gdpo.integrations._scoring import Computed
from gdpo.integrations.rows import Columns, advantages_of, as_groups, reward_columns
from gdpo.integrations.verl.scores import declared_by
from gdpo.integrations.verl.settings import ROLLOUTS, read_settings
from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts.writing import set_aside


def last_outputs(keys: Sequence[str]) -> list[int]:
    """For each row, the row of the last output of its rollout.

    Args:
        keys: As verl names rows: `<prompt>_<rollout>_<output>`, with a number for each output.
    """
    parts = [key.rpartition("_") for key in keys]
    last: dict[str, int] = {}
    for row, (rollout, _, output) in enumerate(parts):
        if rollout not in last or int(output) > int(parts[last[rollout]][2]):
            last[rollout] = row
    return [last[rollout] for rollout, _, _ in parts]


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


_TEXTS = ("prompts", "responses", "reward_model")


_writers: WeakKeyDictionary[Any, StepWriter] = WeakKeyDictionary()  # by trainer


def record(trainer: Any, batch: Any, queue: Any) -> None:
    """Write the rollouts of the batch that the estimator saw last, if the configuration says where.

    Args:
        trainer: verl's.
        batch: Its rows, by their keys in the queue.
        queue: TransferQueue.

    Raises:
        ConfigError: At the first batch of a trainer, if the folder cannot be written to. Later,
            that is logged.
    """
    folder = trainer.config.algorithm.get(ROLLOUTS)
    if folder is None:
        return
    step, computed = int(trainer.global_steps), latest()
    rows = [row for row, by in enumerate(last_outputs(batch.keys)) if row == by]
    rows = [row for row in rows if computed.groups.prompts[row] >= 0]
    facts = _facts(trainer, [batch.keys[row] for row in rows], batch.partition_id, queue)
    rollouts = [_rollout(row, step, computed, fact) for row, fact in zip(rows, facts, strict=True)]
    _writer(trainer, Path(str(folder)), step).write(step, rollouts)


def _writer(trainer: Any, folder: Path, step: int) -> StepWriter:
    if trainer not in _writers:
        writer = StepWriter(folder, declared=declared_by(trainer.config.get("reward")))
        writer.check_folder()
        if step == 1:  # verl counts on from the checkpoint that it resumes
            set_aside(folder)
        _writers[trainer] = writer
    return _writers[trainer]


def _facts(
    trainer: Any, keys: Sequence[str], partition_id: str, queue: Any
) -> list[dict[str, Any]]:
    """What the record holds of each of these rows beside its numbers."""
    data = queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=list(_TEXTS))
    limit = trainer.config.data.max_response_length
    judged = data.get("reward_model", [None] * len(keys))
    return [
        {
            "run": str(trainer.config.trainer.experiment_name),
            "prompt": trainer.tokenizer.decode(prompt, skip_special_tokens=True),
            "completion": trainer.tokenizer.decode(response, skip_special_tokens=True),
            "finish_reason": "length" if len(response) >= limit else "stop",
            "extra": {"uid": key, **_truth(truth)},
        }
        for key, prompt, response, truth in zip(
            keys, data["prompts"], data["responses"], judged, strict=True
        )
    ]


def _truth(judged: Any) -> dict[str, Any]:
    judged = getattr(judged, "data", judged)  # tensordict wraps what is no tensor
    if not isinstance(judged, Mapping) or "ground_truth" not in judged:
        return {}
    return {"ground_truth": judged["ground_truth"]}


def _rollout(row: int, step: int, computed: Computed, fact: Mapping[str, Any]) -> Rollout:
    groups, settings = computed.groups, computed.settings
    at = int(groups.prompts[row]), int(groups.samples[row])
    rewards = zip(settings.names, groups.rewards[at].tolist(), strict=True)
    return Rollout(
        step=step,
        group_id=at[0],
        sample_id=at[1],
        rewards={name: None if value != value else value for name, value in rewards},  # NaN
        weights=dict(zip(settings.names, settings.weights, strict=True)),
        advantage=float(computed.advantages[at]),
        num_tokens=int(groups.token_counts[at]),
        **fact,
    )
