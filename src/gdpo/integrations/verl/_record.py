from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdpo.integrations._scoring import Computed
from gdpo.integrations._turns import messages_of, named, recorded_turns, spans_of
from gdpo.integrations.verl._carried import last_outputs
from gdpo.rollouts import Rollout, Turn


def rollouts_of(computed: Computed, trainer: Any, batch: Any, queue: Any) -> list[Rollout]:
    groups, config = computed.groups, trainer.config
    represent = [row for row, by in enumerate(last_outputs(batch.keys)) if row == by]
    rows = [row for row in represent if groups.prompts[row] >= 0]
    keys = [batch.keys[row] for row in rows]
    fields = ["prompts", "responses", "reward_model", "loss_mask"]
    data = queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    judged, masks = (data.get(name, [None] * len(keys)) for name in fields[2:])
    decode = partial(trainer.tokenizer.decode, skip_special_tokens=True)
    numbers = _numbers(computed, [(int(groups.prompts[r]), int(groups.samples[r])) for r in rows])
    return [
        Rollout(
            run=str(config.trainer.experiment_name),
            step=int(trainer.global_steps),
            prompt=decode(prompt),
            completion=decode(response)
            if mask is None or bool(mask.all())
            else messages_of(response, spans_of(mask.tolist()), decode),
            finish_reason="length" if len(response) >= config.data.max_response_length else "stop",
            extra={"uid": key, **_truth(truth)},
            **own,
        )
        for key, prompt, response, truth, mask, own in zip(
            keys, data["prompts"], data["responses"], judged, masks, numbers, strict=True
        )
    ]


def _truth(judged: Any) -> dict[str, Any]:
    judged = getattr(judged, "data", judged)  # tensordict wraps values that are not tensors
    has_truth = isinstance(judged, Mapping) and "ground_truth" in judged
    return {"ground_truth": judged["ground_truth"]} if has_truth else {}


def _numbers(computed: Computed, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    groups, settings = computed.groups, computed.settings
    given = settings.weights if groups.weights is None else groups.weights
    # A replay multiplies by the multipliers of constraints again.
    used = computed.weights if settings.rule.duals is None else given
    weights = np.broadcast_to(used, groups.rewards[:, 0].shape).tolist()
    return [
        {
            "group_id": at[0],
            "sample_id": at[1],
            "rewards": named(settings.names, groups.rewards[at].tolist()),
            "weights": dict(zip(settings.names, weights[at[0]], strict=True)),
            "advantage": float(computed.advantages[at]),
            "num_tokens": int(groups.token_counts[at]),
            "turns": _turns(computed, at),
        }
        for at in places
    ]


def _turns(computed: Computed, at: tuple[int, int]) -> tuple[Turn, ...] | None:
    turns = computed.groups.turns
    if turns is None:
        return None
    count = int(turns.counts[at])
    advantages = [float(computed.advantages[at])] * count
    if computed.of_turns is not None:
        advantages = computed.of_turns[at][:count].tolist()
    rewards, num_tokens = turns.rewards[at].tolist(), turns.num_tokens[at].tolist()
    return recorded_turns(computed.settings.names, rewards, advantages, num_tokens)
