"""Wraps verl's functions so that the estimator receives each reward separately.

If an estimator of verl computes the advantages, the wrappers only watch: they leave it and its
result unchanged.
"""

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from gdpo._shapes import Float
from gdpo.advantages import gdpo
from gdpo.errors import ConfigError
from gdpo.integrations._turns import summed
from gdpo.integrations.rows import NAME, PREFIX, Computed, as_text, by_name
from gdpo.integrations.verl._carried import Carried, has_turns
from gdpo.integrations.verl._run import VerlRun
from gdpo.integrations.verl.scores import check_keys
from gdpo.integrations.verl.settings import (
    COLUMN,
    ROLLOUTS,
    check_fields,
    check_for_turns,
    is_plain,
    remarks,
    uses_gdpo,
    watches,
)
from gdpo.rollouts.table import by_group

Function = Callable[..., Any]


def with_check(run: VerlRun, need_critic: Function) -> Function:
    """Wrap `need_critic`, which every trainer calls at startup, to check the configuration."""

    @functools.wraps(need_critic)
    def checked(config: Any) -> Any:
        algorithm = config.algorithm
        check_fields(config)
        messages = [] if uses_gdpo(algorithm) else remarks(algorithm)
        if uses_gdpo(algorithm) or watches(algorithm):
            settings = run.settings(algorithm)
            check_keys(config.get("reward"), settings.names)
            if settings.rule.wants_turns:
                messages += check_for_turns(config)
        if uses_gdpo(algorithm):
            check_itself(run)
        for message in messages:
            run.warn_once(message)
        return need_critic(config)

    return checked


def with_columns(run: VerlRun, compute_advantage: Function, registry: dict[str, Any]) -> Function:
    """Wrap `compute_advantage` so that the estimator receives the separate rewards.

    They come from an enclosing `carrying` block if there is one (V1 trainer), otherwise from the
    batch. A user's estimator is added to verl's registry.
    """

    @functools.wraps(compute_advantage)
    def computed(data: Any, adv_estimator: Any, *args: Any, **kwargs: Any) -> Any:
        algorithm: Any = kwargs.get("config") or {}
        carried = run.carried
        if carried is None and algorithm.get(ROLLOUTS) is not None:
            run.warn_once(
                f"algorithm.{ROLLOUTS} has no effect with this trainer: set "
                "trainer.rollout_data_dir instead; its files contain each reward"
            )
        if uses_gdpo(algorithm):
            name = f"{PREFIX}{NAME}" if is_plain(adv_estimator) else as_text(adv_estimator)
            registry.setdefault(name, run.compute_advantages)
            with run.carrying(Carried(data.non_tensor_batch)):
                return compute_advantage(data, name, *args, **kwargs)
        if carried is not None and is_plain(adv_estimator):
            with delivered(run, algorithm, data, carried):
                return compute_advantage(data, adv_estimator, *args, **kwargs)
        done = compute_advantage(data, adv_estimator, *args, **kwargs)
        if carried is None and watches(algorithm):
            run.watching(observe, run, algorithm, done, Carried(done.non_tensor_batch))
        return done

    return computed


def with_metrics(run: VerlRun, compute_data_metrics: Function) -> Function:
    """Wrap `compute_data_metrics`, whose result every trainer logs, to add gdpo's metrics."""

    @functools.wraps(compute_data_metrics)
    def computed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return compute_data_metrics(*args, **kwargs) | run.metrics()

    return computed


def with_queue(run: VerlRun, compute_advantage: Function, queue: Any) -> Function:
    """Wrap `PPOTrainer._compute_advantage` to fetch the rewards from the queue first.

    The wrapper also writes the rollout record, if the configuration sets `gdpo_rollouts`.
    """

    @functools.wraps(compute_advantage)
    def computed(trainer: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        algorithm = trainer.config.algorithm
        if uses_gdpo(algorithm):
            with run.carrying(_carry(run, trainer, batch, queue)):
                done = compute_advantage(trainer, batch, metrics)
            run.record(trainer, batch, queue)
            return done
        if not watches(algorithm) and not is_plain(algorithm.adv_estimator):
            return compute_advantage(trainer, batch, metrics)
        fetch = run.handing_over if is_plain(algorithm.adv_estimator) else run.watching
        carried = fetch(_carry, run, trainer, batch, queue)
        if carried is None:
            return compute_advantage(trainer, batch, metrics)
        with run.carrying(carried):
            done = compute_advantage(trainer, batch, metrics)
        if watches(algorithm):
            run.watching(run.record, trainer, batch, queue)
        return done

    return computed


def with_watch(run: VerlRun, compute_for_trajectories: Function) -> Function:
    @functools.wraps(compute_for_trajectories)
    def computed(data: Any, *args: Any, **kwargs: Any) -> Any:
        done = compute_for_trajectories(data, *args, **kwargs)
        algorithm = kwargs.get("config")
        if algorithm is not None and run.carried is not None and watches(algorithm):
            run.watching(observe, run, algorithm, done, run.carried)
        return done

    return computed


def with_rewards_dumped(run: VerlRun, log_rollout_data: Function, queue: Any) -> Function:
    """Wrap `PPOTrainer._log_rollout_data` so that its files have one column per reward.

    A per-turn reward is written as its total.
    """

    @functools.wraps(log_rollout_data)
    def logged(trainer: Any, batch: Any, timing_raw: Any, rollout_data_dir: str) -> Any:
        algorithm = trainer.config.algorithm
        columns: dict[str, list[Any]] | None = None
        if uses_gdpo(algorithm):
            columns = fetch_columns(trainer, batch, queue)
        elif watches(algorithm):
            columns = run.watching(fetch_columns, trainer, batch, queue)
        if columns is None:
            return log_rollout_data(trainer, batch, timing_raw, rollout_data_dir)
        row = {key: i for i, key in enumerate(batch.keys)}
        dump = trainer._dump_generations

        def dump_with_rewards(*, reward_extra_infos_dict: dict[str, Any], **others: Any) -> None:
            rows = [row[key] for key in reward_extra_infos_dict["uid"]]
            rewards = {name: summed([column[i] for i in rows]) for name, column in columns.items()}
            dump(reward_extra_infos_dict=rewards | reward_extra_infos_dict, **others)

        trainer._dump_generations = dump_with_rewards
        try:
            return log_rollout_data(trainer, batch, timing_raw, rollout_data_dir)
        finally:
            del trainer._dump_generations  # restores the method of the class

    return logged


def with_totals(val_metrics_update: Function) -> Function:
    """Wrap `PPOTrainer._val_metrics_update`, which fails on lists, to pass totals of turns."""

    @functools.wraps(val_metrics_update)
    def updated(
        trainer: Any, sources: Any, uids: Any, infos: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        algorithm = trainer.config.algorithm
        names = algorithm.get("gdpo_reward_keys") or ()
        if uses_gdpo(algorithm) or watches(algorithm):
            infos = {**infos, **{name: summed(infos[name]) for name in names if name in infos}}
        return val_metrics_update(trainer, sources, uids, infos, *args, **kwargs)

    return updated


def _carry(run: VerlRun, trainer: Any, batch: Any, queue: Any) -> Carried:
    algorithm, columns = trainer.config.algorithm, fetch_columns(trainer, batch, queue)
    padding = np.array([bool(tag.get("is_padding")) for tag in batch.tags])
    per_turn = has_turns(columns, algorithm.get("gdpo_reward_keys") or ())
    if not per_turn and uses_gdpo(algorithm):
        per_turn = run.settings(algorithm).rule.wants_turns
    masks = _fetch(batch, queue, ["response_mask"]).get("response_mask") if per_turn else None
    return Carried(columns, keys=batch.keys, padding=padding, masks=masks)


def fetch_columns(trainer: Any, batch: Any, queue: Any) -> dict[str, list[Any]]:
    """Fetch the rewards from the TransferQueue and return one list per reward name.

    The queue stores the values that `compute_score` returned in `extra_fields`, next to those of
    the agent loop, such as `turn_scores`. A reward model that shares the GPUs with the policy
    writes to separate fields.
    """
    names = list(trainer.config.algorithm.get("gdpo_reward_keys") or ())
    column = trainer.config.algorithm.get(COLUMN)
    if column is not None:
        names.append(column)
    given = _fetch(batch, queue, ["extra_fields", *names])
    rows = given.pop("extra_fields", [])
    of_loop = [{name: row[name] for name in names if name in row} for row in rows]
    scored = [row.get("reward_extra_info") or {} for row in rows]
    return given | by_name([loop | own for loop, own in zip(of_loop, scored, strict=True)])


def _fetch(batch: Any, queue: Any, fields: list[str]) -> dict[str, list[Any]]:
    """Return one list per field. The queue ignores fields that it does not have."""
    data = queue.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
    )
    return {
        field: [getattr(item, "data", item) for item in data[field]]
        for field in fields
        if field in data.keys()  # noqa: SIM118  a TensorDict is not a mapping
    }


def observe(run: VerlRun, algorithm: Any, data: Any, carried: Carried) -> None:
    """Store a batch's rewards and verl's advantages for the metrics and the record.

    `carried` has the separate rewards of the same rows.
    """
    settings, mask = run.settings(algorithm), data.batch["response_mask"]
    groups = carried.groups(settings, data.non_tensor_batch["uid"], mask)
    name = as_text(algorithm.get("adv_estimator"))
    rows = of_rows(run, data.batch["advantages"], mask, name)
    given = settings.weights
    table, placed = groups.arrays.table, groups.arrays.placed
    advantages = by_group(rows[table.row], placed, padding=0)
    run.latest = Computed(settings, groups, advantages, advantages, given, given, {}, watched=name)
    if is_plain(name) or "token_level_scores" not in data.batch.keys():  # noqa: SIM118  see _fetch
        return
    scores = data.batch["token_level_scores"].sum(-1).cpu().numpy()
    scores = by_group(scores[table.row], placed, padding=0)
    total = np.nansum(groups.arrays.rewards * np.asarray(given), axis=-1)
    if not np.allclose(scores, total, rtol=1e-3, atol=1e-3 * max(np.abs(scores).max(), 1e-30)):
        weights = dict(zip(settings.names, given, strict=True))
        run.warn_once(
            f"the scalar reward, which verl's estimator uses, is not the sum of the rewards with "
            f"the weights {weights}: gdpo compares the influence of each reward with these "
            "weights. Set +algorithm.gdpo_reward_weights to those of compute_score"
        )


def of_rows(run: VerlRun, advantages: Any, mask: Any, estimator: str) -> Float[np.ndarray, " row"]:
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
def delivered(run: VerlRun, algorithm: Any, data: Any, carried: Carried) -> Generator[None]:
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


TESTED = ("0.8.0", "0.9.1")
"""Versions of verl on which the conformance tests were run."""

_TRAINER, _KEYS, _WEIGHTS = "verl.trainer.ppo.ray_trainer", ("a", "b"), (1.0, 0.5)
_REWARDS = np.array([[[0, 3], [1, 2], [1, 0]], [[2, 0], [0, 0], [2, 1]]], dtype=np.float64)
_TOKENS = 3

_CLOSE = 1e-5
"""Largest allowed difference between verl's float32 and gdpo's float64."""


def check_itself(run: VerlRun) -> None:
    """Raise a ConfigError unless gdpo's estimator works in this verl, on a made-up batch.

    A process that has not imported verl's trainers is not checked, because it does not train.
    """
    if run.is_checked or _TRAINER not in sys.modules:
        return
    expected = gdpo(_REWARDS, _WEIGHTS).reshape(-1, 1)
    try:
        tokens = _through_verl(sys.modules[_TRAINER]).double().numpy()
        run.latest = None  # of the made-up batch, nothing is logged
        difference = np.abs(tokens - expected).max()
        wrong = f"the advantages differ by {difference:.1e}"
        run.is_checked = bool(difference <= _CLOSE)
    except Exception as error:  # noqa: BLE001  another verl may fail in any way
        wrong = f"{type(error).__name__}: {error}"
    if not run.is_checked:
        raise ConfigError(
            f"gdpo's estimators do not work in verl {version('verl')}: with a batch made up for "
            f"this check, {wrong}. Install a version on which gdpo was tested "
            f"({', '.join(TESTED)}), or use one of verl's own estimators"
        )


def _through_verl(ray_trainer: Any) -> Any:
    import torch

    rows = len(_REWARDS) * _REWARDS.shape[1]
    zeros, ones = torch.zeros(rows, _TOKENS), torch.ones(rows, _TOKENS).long()
    columns = dict(zip(_KEYS, _REWARDS.reshape(rows, -1).T, strict=True))
    data = ray_trainer.DataProto.from_dict(
        tensors={"token_level_rewards": zeros, "response_mask": ones},
        non_tensors={
            **{name: column.astype(object) for name, column in columns.items()},
            "uid": np.repeat(["p", "q"], rows // 2).astype(object),
        },
    )
    name = f"{PREFIX}{NAME}"
    algorithm = {
        "adv_estimator": name,
        "gdpo_reward_keys": list(_KEYS),
        "gdpo_reward_weights": list(_WEIGHTS),
    }
    done = ray_trainer.compute_advantage(data, adv_estimator=name, config=algorithm)
    return done.batch["advantages"]
