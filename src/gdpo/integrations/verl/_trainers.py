"""Wraps verl's functions so that the estimator receives each reward separately."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpo.integrations.rows import by_name, is_ours
from gdpo.integrations.verl._estimator import Carried, carrying, metrics_of_latest, record
from gdpo.integrations.verl.scores import check_keys
from gdpo.integrations.verl.settings import check_record, read_settings

Function = Callable[..., Any]


def with_check(need_critic: Function) -> Function:
    """Wrap `need_critic`, which every trainer calls at startup, to check the configuration."""

    @functools.wraps(need_critic)
    def checked(config: Any) -> Any:
        check_record(config)
        if is_ours(config.algorithm.adv_estimator):
            check_keys(config.get("reward"), read_settings(config.algorithm).names)
        return need_critic(config)

    return checked


def with_columns(compute_advantage: Function, register: Callable[[str], None]) -> Function:
    """Wrap `compute_advantage` so that the estimator receives the separate rewards.

    The rewards come from an enclosing `carrying` block if there is one, otherwise from the batch.

    Args:
        compute_advantage: verl's function.
        register: Function that registers gdpo's estimator under a name, unless the name is already
            registered.
    """

    @functools.wraps(compute_advantage)
    def computed(data: Any, adv_estimator: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(adv_estimator):
            return compute_advantage(data, adv_estimator, *args, **kwargs)
        register(str(getattr(adv_estimator, "value", adv_estimator)))
        with carrying(Carried(data.non_tensor_batch)):
            return compute_advantage(data, adv_estimator, *args, **kwargs)

    return computed


def with_metrics(compute_data_metrics: Function) -> Function:
    """Wrap `compute_data_metrics`, whose result every trainer logs, to add gdpo's metrics."""

    @functools.wraps(compute_data_metrics)
    def computed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return compute_data_metrics(*args, **kwargs) | metrics_of_latest()

    return computed


def with_queue(compute_advantage: Function, queue: Any) -> Function:
    """Wrap `PPOTrainer._compute_advantage` to fetch the rewards from the queue first.

    The wrapper also writes the rollout record, if the configuration sets `gdpo_rollouts`.
    """

    @functools.wraps(compute_advantage)
    def computed(trainer: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        if not is_ours(trainer.config.algorithm.adv_estimator):
            return compute_advantage(trainer, batch, metrics)
        padding = np.array([bool(tag.get("is_padding")) for tag in batch.tags])
        columns = fetch_columns(trainer, batch, queue)
        with carrying(Carried(columns, keys=batch.keys, padding=padding)):
            done = compute_advantage(trainer, batch, metrics)
        record(trainer, batch, queue)
        return done

    return computed


def with_rewards_dumped(log_rollout_data: Function, queue: Any) -> Function:
    """Wrap `PPOTrainer._log_rollout_data` so that its files have one column per reward."""

    @functools.wraps(log_rollout_data)
    def logged(trainer: Any, batch: Any, timing_raw: Any, rollout_data_dir: str) -> Any:
        if not is_ours(trainer.config.algorithm.adv_estimator):
            return log_rollout_data(trainer, batch, timing_raw, rollout_data_dir)
        columns = fetch_columns(trainer, batch, queue)
        row = {key: i for i, key in enumerate(batch.keys)}
        dump = trainer._dump_generations

        def dump_with_rewards(*, reward_extra_infos_dict: dict[str, Any], **others: Any) -> None:
            rows = [row[key] for key in reward_extra_infos_dict["uid"]]
            rewards = {name: [column[i] for i in rows] for name, column in columns.items()}
            dump(reward_extra_infos_dict=rewards | reward_extra_infos_dict, **others)

        trainer._dump_generations = dump_with_rewards
        try:
            return log_rollout_data(trainer, batch, timing_raw, rollout_data_dir)
        finally:
            del trainer._dump_generations  # restores the method of the class

    return logged


def fetch_columns(trainer: Any, batch: Any, queue: Any) -> dict[str, list[Any]]:
    """Fetch the rewards from the TransferQueue and return one list per reward name.

    The queue stores the values that `compute_score` returned in `extra_fields`. A reward model that
    shares the GPUs with the policy writes to separate fields.
    """
    names = read_settings(trainer.config.algorithm).names
    fields = ["extra_fields", *names]  # the queue ignores fields that it does not have
    data = queue.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
    )
    given: dict[str, list[Any]] = {
        field: [getattr(item, "data", item) for item in data[field]]
        for field in fields
        if field in data.keys()  # noqa: SIM118  a TensorDict is not a mapping
    }
    rows = given.pop("extra_fields", [])
    return given | by_name([row.get("reward_extra_info") or {} for row in rows])
