"""Makes TRL's reward functions from `Reward` objects, and checks and keeps what functions return.

TRL rounds rewards to float32, in which a reward that varies between 100,000 and 100,001 looks
constant except for rounding. A function may also return one number for each turn of a completion,
of which TRL gets the total.
"""

import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.trainer.utils import get_callable_name, get_config_model_id

from gdpo._naming import did_you_mean, last_line
from gdpo.advantages.registry import weights_by_name
from gdpo.errors import ConfigError, GdpoError, RewardError, boundary
from gdpo.integrations._turns import is_per_turn
from gdpo.integrations.trl._adapter import is_async_callable
from gdpo.integrations.trl._groups import Ranks
from gdpo.integrations.trl._turns import Located, finite, spread, total_of
from gdpo.rewards import Reward, Scorer, Scores
from gdpo.rewards.weights_column import weights_of_cells

logger = logging.getLogger(__name__)


def ranged(given: Sequence[Any], arguments: Mapping[str, Any]) -> list[Any]:
    """Return the rewards, with None for those whose total may leave the range of a turn.

    Without tools, environments and a `rollout_func` among TRL's arguments, a completion has one
    turn.
    """
    if not any(arguments.get(k) for k in ("tools", "environment_factory", "rollout_func")):
        return list(given)
    return [None if isinstance(r, Reward) and r.of == "turn" else r for r in given]


def all_weights(names: Sequence[str], rewards: Sequence[Any], given: Any) -> list[float]:
    """Return one weight per reward."""
    if not names:  # TRL's message, which users know and search for
        raise ConfigError(
            "No reward source provided. Pass `reward_funcs`, or an `environment_factory` whose "
            "environment defines a `get_reward` method."
        )
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ConfigError(
                f"two rewards have the name {name!r}, but weights, metrics and files are keyed "
                f"by name. Rename reward {i} before you create the trainer: "
                f"{_renaming(rewards[i] if i < len(rewards) else None, f'{name}_2')}"
            )
    if isinstance(given, list | tuple) and len(given) == len(rewards):
        given = [*given, *[1.0] * (len(names) - len(rewards))]
    return weights_by_name(names, given)


def as_sequence(reward_funcs: Any) -> list[Any]:
    given: list[Any] = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    return [reward for reward in given if reward is not None]


def as_reward_functions(
    given: Sequence[Any], scorer: Mapping[str, Any] | None = None, *, located: Located
) -> tuple[list[Any], Scorer]:
    """Return the reward functions for TRL, and the scorer that runs the `Reward` objects.

    Everything else is passed through unchanged. TRL calls a function with `(prompts, completions,
    completion_ids, **columns)`. It returns, or is async and returns, a list with one number or None
    for each completion. In place of a number, the list may contain a list with one number for each
    turn of the completion.
    """
    rewards = [reward for reward in given if isinstance(reward, Reward)]
    shared = _SharedScores(Scorer.from_options(rewards, scorer or {}), located)
    functions = [_Column(each, shared) if isinstance(each, Reward) else each for each in given]
    return functions, shared.scorer


def numbered(names: Sequence[str]) -> list[str]:
    """Return distinct names: one that occurs again gets the next free number. This is logged."""
    distinct: list[str] = []
    for name in names:
        free, number = name, 2
        while free in distinct or (free != name and free in names):
            free, number = f"{name}_{number}", number + 1
        distinct.append(free)
    if distinct != list(names):
        logger.warning(
            "some rewards share a name. gdpo's metrics, findings and files call them %s, in the "
            "order of reward_funcs",
            ", ".join(distinct),
        )
    return distinct


def _renaming(reward: Any, name: str) -> str:
    if isinstance(reward, Reward):
        return f"dataclasses.replace(reward, name={name!r})"
    if isinstance(reward, str):
        return f"load the reward model, and set model.config._name_or_path = {name!r}"
    if isinstance(reward, torch.nn.Module):
        return f"model.config._name_or_path = {name!r}"
    if reward is None:
        return "rename the environment class"
    return f"renamed = functools.partial(reward); renamed.__name__ = {name!r}"


def check_columns(
    given: Sequence[Any], arguments: Mapping[str, Any], *, may_add_columns: bool
) -> None:
    """Check that each dataset has the columns that the rewards read.

    A dataset is not checked if its columns are not known in advance (a stream, or a dataset with a
    transform), nor are functions if a subclass may add columns.
    """
    rewards = [reward for reward in given if isinstance(reward, Reward)]
    functions = [
        reward for reward in given if not isinstance(reward, Reward | str | torch.nn.Module)
    ]
    for _, columns in _known_datasets(arguments):
        if rewards and "reference" not in columns:
            raise _no_reference(rewards[0], columns)
        if may_add_columns or arguments.get("rollout_func"):
            continue
        passed = [column for column in columns if column not in _RENAMED]
        for function in functions:
            if problem := _wrong_parameters(function, [*_ALWAYS, *passed], passed):
                raise RewardError(f"reward {callable_name(function)!r} {problem}")


def check_weights_column(arguments: Mapping[str, Any], column: str, names: Sequence[str]) -> None:
    """Check every row of the datasets' column with weights.

    Streams and datasets with a transform are checked as they are read.
    """
    for each, columns in _known_datasets(arguments):
        if column not in columns:
            raise ConfigError(
                f"weights_column={column!r}, but the dataset has no such column: "
                f"{did_you_mean(column, columns)}, add the column, or remove the setting"
            )
        if hasattr(each, "__len__"):  # not a stream
            weights_of_cells(each[column], names, [1.0] * len(names), column=column)


def _known_datasets(arguments: Mapping[str, Any]) -> Iterator[tuple[Any, Sequence[str]]]:
    for which in ("train_dataset", "eval_dataset"):
        given = arguments.get(which)
        for dataset in given.values() if isinstance(given, dict) else [given]:
            form: Any = getattr(dataset, "format", None)
            has_transform = isinstance(form, dict) and form.get("type") == "custom"
            columns = None if has_transform else getattr(dataset, "column_names", None)
            if columns is not None:
                yield dataset, columns


def check_rewards(rewards: Any, rollouts: int, names: Sequence[str]) -> None:
    expected = (rollouts, len(names))
    got = type(rewards).__name__
    if isinstance(rewards, torch.Tensor):
        if rewards.shape == expected and rewards.is_floating_point():
            return
        got = f"a tensor of {rewards.dtype} with shape {tuple(rewards.shape)}"
    raise RewardError(
        f"_calculate_rewards returned {got}: return a tensor of floats [rollout, reward] with "
        f"shape {expected}: the rollouts of all processes, and one column for each of "
        f"{', '.join(names)}"
    )


def name_of(reward: Any) -> str:
    if isinstance(reward, str):
        return reward.split("/")[-1]
    if isinstance(reward, torch.nn.Module):
        config: Any = reward.config
        return get_config_model_id(config).split("/")[-1]
    return callable_name(reward)


def callable_name(function: Any) -> str:
    """Return TRL's name of a function, unless a partial has been given a name of its own."""
    own = getattr(function, "__name__", None)
    return own if isinstance(own, str) else get_callable_name(function)


class _SharedScores:
    """Scores each batch once with all rewards, although TRL calls the rewards one by one."""

    def __init__(self, scorer: Scorer, located: Located) -> None:
        self.scorer, self._located = scorer, located
        self._scored: tuple[Any, Any] = None, None
        """The completions of the latest batch, and their scores."""

    def of(
        self, completions: list[Any], completion_ids: list[Any], references: list[Any]
    ) -> Scores:
        """Return the scores of a batch. TRL passes the same `completions` object to all rewards."""
        if completions is not self._scored[0]:
            messages = self._located.messages(completions, completion_ids)
            counts = list(map(len, completion_ids))
            scores = self.scorer.score(messages, references, num_tokens=counts)
            self._scored = completions, scores
        return self._scored[1]


class _Column:
    """Is the reward function of a `Reward`. The errors that it raises name the reward already."""

    def __init__(self, reward: Reward, shared: _SharedScores) -> None:
        self._reward, self._shared = reward, shared
        self.__name__ = reward.name

    def __call__(
        self,
        *,
        completions: list[Any],
        completion_ids: list[Any],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[Any]:
        reward, shared = self._reward, self._shared
        if "reference" not in columns:
            raise _no_reference(reward, [k for k, v in columns.items() if isinstance(v, list)])
        scores = shared.of(completions, completion_ids, columns["reference"])
        count = len(completions)
        log_metric(f"rewards/{reward.name}/failed", scores.failed(reward.name) / count)
        for kind, failed in scores.kinds(reward.name).items():
            slug = kind.lower().replace(" ", "_")
            log_metric(f"rewards/{reward.name}/failed_{slug}", failed / count)
        if reward.of == "turn":  # a completion without a message of the model has no score
            turns = scores.turns[reward.name]
            return [[None if v != v else v for v in values] or None for values in turns]
        values = scores.values[:, shared.scorer.rewards.index(reward)].tolist()
        return [None if value != value else value for value in values]  # NaN


def _no_reference(reward: Reward, columns: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"reward {reward.name!r} needs the dataset column 'reference', which is missing: add this "
        f"column, with one dict per row. Existing columns: {', '.join(sorted(columns))}"
    )


def _check_values(name: str, values: Any, count: int) -> list[Any]:
    """Return a function's values as numbers, None, or one number or None for each turn."""
    try:
        returned = list(values)
    except (TypeError, ValueError, OverflowError) as error:  # a generator runs only here
        raise RewardError(
            f"reward {name!r} returned {values!r:.200} ({error}): return a list with one float or "
            "None per completion"
        ) from error
    if len(returned) != count:
        raise RewardError(
            f"reward {name!r} returned {len(returned)} values for {count} completions: return one "
            "float or None per completion, in the same order"
        )
    return [
        value if is_per_turn(value) else finite(name, value, f"completion {i} of {count}")
        for i, value in enumerate(returned)
    ]


_ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments that TRL passes to every reward function, besides the columns of the dataset."""

_SOMETIMES = ("environments",)
"""Arguments that TRL passes only in some training runs."""

_RENAMED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass under their own names."""


def _raised(name: str, function: Any, passed: Mapping[str, Any], error: BaseException) -> str:
    columns = [
        key
        for key, value in passed.items()
        if isinstance(value, list) and key not in (*_ALWAYS, *_SOMETIMES)
    ]
    if problem := _wrong_parameters(function, list(passed), columns):
        return f"reward {name!r} {problem}"
    remedy = (
        "A reward must return a number or None for every completion: catch the exception, and "
        "return None if the reward does not apply"
    )
    if isinstance(error, KeyError) and error.args and error.args[0] not in passed:
        remedy = (
            f"If {error.args[0]!r} is a column of the dataset, add it. The columns are: "
            f"{_listed(columns)}. If the reward does not apply to the completion, return None"
        )
    what = f"{type(error).__name__}: {str(error)[:300]!r} ({last_line(error)})"
    return f"reward {name!r} raised {what}. {remedy}"


def _wrong_parameters(function: Any, passed: Sequence[str], columns: Sequence[str]) -> str | None:
    try:
        # Not those of a function that a decorator has wrapped: the decorator may adapt the call.
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_name = {each.name: each for each in parameters if each.kind in named}
    needed = [name for name, each in by_name.items() if each.default is each.empty]
    if missing := [name for name in needed if name not in (*passed, *_SOMETIMES)]:
        return (
            f"needs the argument {_listed(missing)}, which is neither a column of the dataset nor "
            f"an argument of TRL. Add the column, or rename the parameter. Columns: "
            f"{_listed(columns)}. TRL's arguments: {_listed(_ALWAYS)}"
        )
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if not takes_all and (refused := [name for name in passed if name not in by_name]):
        return (
            f"does not take {_listed(refused)}, which TRL passes to every reward function: add "
            "**kwargs to its parameters"
        )
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


@dataclass(frozen=True)
class Returned:
    """Stores what the reward functions returned for a batch, on all ranks, on the CPU."""

    rewards: torch.Tensor
    """Rewards `[rollout, reward]`. The total, if a reward was given for each turn."""
    turns: torch.Tensor | None = None
    """Rewards `[rollout, turn, reward]`. A reward that was not given for each turn is at the last
    turn. None: no reward was given for each turn, and turns are not needed."""
    counts: tuple[int, ...] = ()
    """Number of turns of each rollout. Empty: `turns` is None."""


def exact_where_kept(
    exact: torch.Tensor, for_trl: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards to train on, and a mask of the unchanged ones.

    The exact reward is used where TRL gets it rounded (`for_trl`), and the changed one where a
    subclass or a script changed it. All arrays are `[rollout, reward]`.
    """
    rounded = (exact.to(for_trl.dtype), exact.float().to(for_trl.dtype))
    kept = (rounded[0] == for_trl) | (rounded[1] == for_trl) | (exact.isnan() & for_trl.isnan())
    return torch.where(kept, exact, for_trl), kept


class ExactRewards:
    """Stores the return values of reward functions while TRL scores a batch.

    With `wants_turns`, the rewards of each turn are needed even if every reward is one number per
    rollout.
    """

    def __init__(self, located: Located, *, wants_turns: bool) -> None:
        self._located, self._wants_turns = located, wants_turns
        self._given: dict[int, list[tuple[Any, Any]]] = {}
        """Maps columns to what their functions returned, and the totals over the turns."""

    def of_all_ranks(self, rounded: torch.Tensor, ranks: Ranks) -> Returned:
        """Return the rewards of the latest batch. Every process must call this method.

        The dtype is float64, or float32 if all rewards come from reward models. `rounded` holds the
        rewards `[rollout, reward]` that TRL gathered.
        """
        if not self._given and not self._wants_turns:
            return Returned(rounded.cpu())
        local = ranks.own(rounded.cpu())
        exact = local.double() if self._given else local
        of_turns: list[dict[int, list[float]]] = [{} for _ in range(len(local))]
        for column, given in self._given.items():
            numbers = [math.nan if total is None else float(total) for _, total in given]
            totals = torch.tensor(numbers, dtype=torch.float64)
            same = totals.to(local.dtype) == local[:, column]  # False for NaN
            exact[:, column] = torch.where(same, totals, exact[:, column])
            for i, (value, _) in enumerate(given):
                if is_per_turn(value) and same[i]:
                    of_turns[i][column] = [float(each) for each in value]
        self._given.clear()
        counts = self._located.counts
        everything: Any = gather_object(list(zip(exact.tolist(), of_turns, counts, strict=True)))
        rows, per_turn, all_counts = zip(*everything, strict=True)
        rewards = torch.tensor(rows, dtype=exact.dtype)
        if not self._wants_turns and not any(per_turn):
            return Returned(rewards)
        return Returned(rewards, spread(rewards, per_turn, all_counts), all_counts)

    def watched(self, column: int, function: Any, name: str) -> Any:
        """Return the reward function of a column, whose return values are checked and kept.

        Reward models and their names are returned unchanged.
        """
        if isinstance(function, str | torch.nn.Module):
            return function
        given_function: Any = function
        passed = GdpoError if isinstance(given_function, _Column) else KeyboardInterrupt

        def now(**given: Any) -> list[Any]:
            with boundary(RewardError, partial(_raised, name, function, given), passed=passed):
                values = function(**given)
            return self._kept(column, name, values, len(given["completions"]))

        async def later(**given: Any) -> list[Any]:
            with boundary(RewardError, partial(_raised, name, function, given), passed=passed):
                values = await function(**given)
            return self._kept(column, name, values, len(given["completions"]))

        chosen = later if is_async_callable(function) else now
        functools.update_wrapper(chosen, function, assigned=("__module__", "__doc__"), updated=())
        chosen.__name__ = name
        return chosen

    def _kept(self, column: int, name: str, values: Any, count: int) -> list[Any]:
        """Check and store what a function returned. Return one value per completion, for TRL."""
        returned, counts = _check_values(name, values, count), self._located.counts
        if len(returned) != len(counts):
            return returned  # of a part of the batch
        totals = [
            total_of(name, value, i, turns)
            for i, (value, turns) in enumerate(zip(returned, counts, strict=True))
        ]
        self._given[column] = list(zip(returned, totals, strict=True))
        return totals
