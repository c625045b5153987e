"""Computes advantages for verl.

verl passes one number per token to an estimator, with the rewards already summed. `carrying` makes
the separate rewards available to the estimator while verl computes advantages. A reward may be a
list with one number for each turn of the rollout.
"""

import functools
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Bool, Int
from gdpo.diagnostics import Watch
from gdpo.errors import ConfigError
from gdpo.integrations._harmless import Harmless
from gdpo.integrations._scoring import Computed, compute
from gdpo.integrations._settings import Settings
from gdpo.integrations._turns import (
    TurnPlaces,
    check_count,
    is_per_turn,
    messages_of,
    on_tokens,
    spans_of,
    summed,
    tokens_of_turns,
)
from gdpo.integrations.rows import Columns, Groups, as_groups, reward_columns
from gdpo.integrations.verl.scores import declared_by
from gdpo.integrations.verl.settings import ROLLOUTS, read_settings
from gdpo.rewards.weights_column import weights_of_cells
from gdpo.rollouts import Rollout, StepWriter, Turn
from gdpo.rollouts.record import Text
from gdpo.rollouts.writing import set_aside

logger = logging.getLogger(__name__)


def last_outputs(keys: Sequence[str]) -> list[int]:
    """Return, for each row, the index of the last output that belongs to the same rollout.

    Args:
        keys: verl's row keys, in the format `<prompt>_<rollout>_<output number>`.
    """
    parts = [key.rpartition("_") for key in keys]
    last: dict[str, int] = {}
    for row, (rollout, _, output) in enumerate(parts):
        if rollout not in last or int(output) > int(parts[last[rollout]][2]):
            last[rollout] = row
    return [last[rollout] for rollout, _, _ in parts]


def first_turns(keys: Sequence[str], counts: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Return, for each row, how many turns the earlier outputs of the same rollout have.

    Args:
        keys: verl's row keys, as in `last_outputs`.
        counts: Number of turns of each row.
    """
    parts = [key.rpartition("_") for key in keys]
    found, so_far = np.zeros(len(keys), dtype=np.int64), dict[str, int]()
    for row in sorted(range(len(keys)), key=lambda row: int(parts[row][2])):
        rollout = parts[row][0]
        found[row] = so_far.get(rollout, 0)
        so_far[rollout] = int(found[row] + counts[row])
    return found


@dataclass(frozen=True, slots=True)
class Carried:
    """Stores the batch data that an estimator needs but does not get from verl."""

    columns: Columns
    """Maps each reward name to the rewards of all rows."""
    keys: Sequence[str] | None = None
    """verl's row keys. None: every row is a separate rollout."""
    padding: Bool[np.ndarray, " row"] | None = None
    """True for padding rows. None: the batch has no padding rows."""
    masks: Sequence[Any] | None = None
    """1 for the tokens that the model generated, for each row, before verl rejects tokens. None:
    the mask that verl passes."""

    @property
    def outputs(self) -> list[int] | None:
        """For each row, the row that represents its rollout. None: every row is a rollout."""
        return None if self.keys is None else last_outputs(self.keys)

    def groups(self, settings: Settings, prompt_ids: Any, response_mask: Any) -> Groups:
        """Return the rewards in groups.

        Args:
            settings: Settings with the names of the rewards.
            prompt_ids: Prompt id of each row.
            response_mask: Array `[row, token]` with 1 for trained tokens.

        Raises:
            ConfigError: If a reward is not in the batch.
            DataError: If the rewards of a rollout's turns are not as many as its turns.
        """
        located = self._located(settings, response_mask)
        rewards = reward_columns(
            self.columns if located is None else self._totals(settings.names, located),
            settings.names,
            asked_by="algorithm.gdpo_reward_keys",
            given_by="compute_score, next to 'score'",
        )
        lengths = response_mask.sum(-1).cpu().numpy()
        groups = as_groups(
            rewards, list(prompt_ids), lengths, outputs=self.outputs, padding=self.padding
        )
        if located is not None:
            groups = groups.with_turns(located, [self.columns[name] for name in settings.names])
        return self._weighted(groups, settings)

    def _weighted(self, groups: Groups, settings: Settings) -> Groups:
        """Return the groups with the weights of each prompt, if the settings name a column."""
        column = settings.weights_column
        if column is None:
            return groups
        if column not in self.columns:
            raise ConfigError(
                f"algorithm.gdpo_weights_column is {column!r}, but the batch has no such column: "
                f"{did_you_mean(column, list(self.columns))}. Add the column to the data files"
            )
        return groups.with_weights(
            weights_of_cells(self.columns[column], settings.names, settings.weights, column=column)
        )

    def _located(self, settings: Settings, response_mask: Any) -> TurnPlaces | None:
        """Return the turns of the rows, or None if neither estimator nor rewards have turns."""
        if not settings.rule.wants_turns and not has_turns(self.columns, settings.names):
            return None
        lengths = tokens_of_turns(self.written(response_mask).cpu().numpy())
        counts = np.count_nonzero(lengths, axis=1)
        if self.keys is None:
            return TurnPlaces(lengths, range(len(lengths)), np.zeros_like(counts))
        return TurnPlaces(lengths, last_outputs(self.keys), first_turns(self.keys, counts))

    def _totals(self, names: Sequence[str], located: TurnPlaces) -> Columns:
        """Return the columns with totals in place of rewards of turns, which must be as many."""
        counts = located.counts
        for row in np.flatnonzero(np.asarray(located.outputs) == np.arange(len(counts))).tolist():
            if self.padding is not None and self.padding[row]:
                continue
            rollout = f"row {row}" if self.keys is None else f"row {row} ({self.keys[row]})"
            for name in set(names) & set(self.columns):
                check_count(name, self.columns[name][row], int(counts[row]), rollout=rollout)
        totals = {name: summed(self.columns[name]) for name in names if name in self.columns}
        return {**self.columns, **totals}

    def written(self, response_mask: Any) -> Any:
        """Return 1 for the tokens that the model generated, `[row, token]`.

        Args:
            response_mask: verl's mask, in which rejected tokens are 0 too.
        """
        if self.masks is None:
            return response_mask
        found = response_mask.new_zeros(response_mask.shape)
        for row, mask in enumerate(self.masks):
            found[row, : len(mask)] = mask
        return found


def has_turns(columns: Columns, names: Sequence[str]) -> bool:
    """Return whether one of the named rewards has one number for each turn."""
    return any(any(map(is_per_turn, columns[name])) for name in names if name in columns)


_carried: ContextVar[Carried | None] = ContextVar("carried", default=None)
_latest: list[Computed] = []
_watch = Watch()


@contextmanager
def carrying(carried: Carried) -> Generator[None]:
    """Make `carried` available to the estimator inside the `with` block.

    If an enclosing block has already set a value, that value is kept.
    """
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
    """Compute the advantage of every trained token with the configured estimator.

    Args:
        token_level_rewards: Only the dtype and device are used; the separate rewards come from
            `carrying` or `non_tensor_batch`.
        response_mask: Array `[row, token]` with 1 for trained tokens.
        config: The `algorithm` section of verl's configuration.
        index: Prompt id of each row.
        non_tensor_batch: Maps each reward name to the rewards of all rows. None: verl does not
            pass the rewards.
        batch: Not used.
        reward_baselines: Not used.

    Returns:
        The advantages and the returns, two identical arrays `[row, token]`. Tokens that are not
        trained have the value 0.

    Raises:
        ConfigError: If the configuration is invalid, or if it lists a reward that is not in the
            batch.
        DataError: If a reward is infinite or not a number, or if the rewards of a rollout's turns
            are not as many as its turns.
    """
    settings = read_settings(config)
    carried = _carried.get()
    if carried is None and non_tensor_batch is not None:
        carried = Carried(non_tensor_batch)
    if carried is None:
        raise ConfigError(
            "the separate rewards did not reach the estimator, because gdpo does not support this "
            "trainer: use one of verl's own trainers, or pass non_tensor_batch"
        )
    computed = compute(carried.groups(settings, index, response_mask), settings)
    keep(computed)
    tokens = _of_tokens(computed, token_level_rewards, carried.written(response_mask))
    tokens = tokens * response_mask
    return tokens, tokens


def _of_tokens(computed: Computed, like: Any, written: Any) -> Any:
    """Return the advantage of each token, `[row, token]`, or of each row, `[row, 1]`.

    Args:
        computed: The batch with its advantages.
        like: An array with the dtype and the device of the result.
        written: 1 for the tokens that the model generated.
    """
    groups = computed.groups
    if computed.of_turns is None:
        return like.new_tensor(groups.per_row(computed.advantages)).unsqueeze(-1)
    return on_tokens(like.new_tensor(groups.per_row_and_turn(computed.of_turns)), written)


def current() -> Carried | None:
    """Return what an enclosing `carrying` block makes available, or None."""
    return _carried.get()


def keep(computed: Computed) -> None:
    """Store a batch with its advantages for the metrics and the rollout record."""
    _latest[:] = [computed]


def discard() -> None:
    """Forget the latest batch."""
    _latest.clear()


def latest() -> Computed:
    """Return the latest batch with its advantages."""
    return _latest[-1]


def metrics_of_latest() -> dict[str, float]:
    """Return the metrics of the latest batch for verl's loggers.

    A second call for the same batch returns no metrics. The names are `gdpo/<reward>/...` for
    reward metrics and `gdpo/...` for batch metrics; see `Diagnosis.metrics()`. The function also
    logs each warning that `gdpo.diagnostics.Watch` reports.
    """
    if not _latest:
        return {}
    computed = _latest.pop()
    if computed.watched is None:
        return computed.metrics(_watch)
    return harmless(computed.metrics, _watch) or {}


harmless = Harmless("gdpo stops watching this run, which goes on without gdpo's metrics and record")

_TEXTS = ("prompts", "responses", "reward_model", "loss_mask")


_writers: WeakKeyDictionary[Any, StepWriter] = WeakKeyDictionary()  # by trainer


def record(trainer: Any, batch: Any, queue: Any) -> None:
    """Write the rollouts of the latest batch, if there is one and `gdpo_rollouts` is set.

    Args:
        trainer: verl's trainer.
        batch: verl's batch, which contains the keys of its rows in the queue.
        queue: The TransferQueue.

    Raises:
        ConfigError: If the folder is not writable when a trainer processes its first batch. Later
            write failures are only logged.
    """
    folder = trainer.config.algorithm.get(ROLLOUTS)
    if folder is None or not _latest:
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
        if step == 1:  # a resumed run starts at the step of its checkpoint
            set_aside(folder)
        _writers[trainer] = writer
    return _writers[trainer]


def _facts(
    trainer: Any, keys: Sequence[str], partition_id: str, queue: Any
) -> list[dict[str, Any]]:
    """Return the text fields of the rollout record for the rows with these keys."""
    data = queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=list(_TEXTS))
    limit = trainer.config.data.max_response_length
    decode = functools.partial(trainer.tokenizer.decode, skip_special_tokens=True)
    judged, masks = (data.get(name, [None] * len(keys)) for name in ("reward_model", "loss_mask"))
    return [
        {
            "run": str(trainer.config.trainer.experiment_name),
            "prompt": decode(prompt),
            "completion": _completion(response, mask, decode),
            "finish_reason": "length" if len(response) >= limit else "stop",
            "extra": {"uid": key, **_truth(truth)},
        }
        for key, prompt, response, truth, mask in zip(
            keys, data["prompts"], data["responses"], judged, masks, strict=True
        )
    ]


def _completion(response: Any, mask: Any, decode: Callable[[Any], str]) -> Text:
    """Return a completion as text, or as messages if the model did not generate all its tokens."""
    if mask is None or bool(mask.all()):
        return decode(response)
    return messages_of(response, spans_of(mask.tolist()), decode)


def _truth(judged: Any) -> dict[str, Any]:
    judged = getattr(judged, "data", judged)  # tensordict wraps values that are not tensors
    if not isinstance(judged, Mapping) or "ground_truth" not in judged:
        return {}
    return {"ground_truth": judged["ground_truth"]}


def _rollout(row: int, step: int, computed: Computed, fact: Mapping[str, Any]) -> Rollout:
    groups, settings = computed.groups, computed.settings
    at = int(groups.prompts[row]), int(groups.samples[row])
    rewards = zip(settings.names, groups.rewards[at].tolist(), strict=True)
    given = settings.weights if groups.weights is None else groups.weights
    # A replay multiplies by the multipliers of constraints again.
    used = computed.weights if settings.rule.duals is None else given
    weights = np.broadcast_to(used, groups.rewards[:, 0].shape)[at[0]].tolist()
    return Rollout(
        step=step,
        group_id=at[0],
        sample_id=at[1],
        rewards={name: None if value != value else value for name, value in rewards},  # NaN
        weights=dict(zip(settings.names, weights, strict=True)),
        advantage=float(computed.advantages[at]),
        num_tokens=int(groups.token_counts[at]),
        turns=_turns(computed, at),
        **fact,
    )


def _turns(computed: Computed, at: tuple[int, int]) -> tuple[Turn, ...] | None:
    """Return the turns of a rollout, or None if the batch has none."""
    turns, names = computed.groups.turns, computed.settings.names
    if turns is None:
        return None
    count = int(turns.counts[at])
    rewards, num_tokens = turns.rewards[at][:count].tolist(), turns.num_tokens[at].tolist()
    if computed.of_turns is None:
        advantages = [float(computed.advantages[at])] * count
    else:
        advantages = computed.of_turns[at][:count].tolist()
    return tuple(
        Turn(
            rewards={n: None if v != v else v for n, v in zip(names, row, strict=True)},
            advantage=advantage,
            num_tokens=tokens,
        )
        for row, advantage, tokens in zip(rewards, advantages, num_tokens, strict=False)
    )
