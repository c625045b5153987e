"""Our rollout record, a file per step, out of the queue of verl's V1 trainer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gdpo.integrations._metrics import Computed
from gdpo.integrations.verl._compute_score import declared_by
from gdpo.integrations.verl._estimator import latest
from gdpo.integrations.verl._rows import last_outputs
from gdpo.integrations.verl._settings import ROLLOUTS
from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts._writing import set_aside

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
