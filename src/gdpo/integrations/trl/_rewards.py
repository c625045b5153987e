"""Reward functions on their way into TRL.

`Reward` objects get TRL's signature, and every result is checked.
"""

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from transformers import set_seed
from trl.trainer.utils import get_callable_name, get_config_model_id, is_async_callable

from gdpo.advantages.registry import weights_by_name
from gdpo.errors import ConfigError, RewardError
from gdpo.rewards import Reward, Scorer, Scores
from gdpo.rewards.scorer import check_distinct


def environment_rewards(environment_factory: Any, seed: int) -> tuple[list[str], Any]:
    """Return the names of the rewards that environments own, and the factory that TRL shall get.

    A class is its own factory and says at once whether it has a reward. Any other factory is called
    once, and what it makes becomes TRL's first environment, so that TRL calls it no more often.

    Args:
        environment_factory: As TRL takes it: a factory, a dict of them by name, or None.
        seed: Of the run; set before a factory is called, as TRL does.
    """
    if environment_factory is None:
        return [], None
    several = isinstance(environment_factory, dict)
    factories: dict[Any, Any] = environment_factory if several else {None: environment_factory}
    if not all(isinstance(factory, type) for factory in factories.values()):
        set_seed(seed)
    known = {name: _probed(factory) for name, factory in factories.items()}
    owners = dict.fromkeys(made for made, _ in known.values() if _owns_reward(made))
    given = {name: factory for name, (_, factory) in known.items()}
    return [owner.__name__ for owner in owners], given if several else given[None]


def all_weights(names: Sequence[str], own: Sequence[str], given: Any) -> list[float]:
    """Return a weight for each reward; those that environments own are the last.

    A list may leave out the rewards of environments, as TRL's does: then they weigh 1.

    Raises:
        ConfigError: A name that is no reward's, or a number of weights that does not fit.
    """
    if isinstance(given, list | tuple) and len(given) == len(names) - len(own):
        given = [*given, *[1.0] * len(own)]
    return weights_by_name(names, given)


def _probed(factory: Any) -> tuple[type, Callable[[], Any]]:
    """Return the class of what a factory makes, and a factory that makes no more than this one."""
    if isinstance(factory, type):
        return factory, factory
    waiting = [factory()]
    return type(waiting[0]), lambda: waiting.pop() if waiting else factory()


def _owns_reward(environment: type) -> bool:
    return inspect.isfunction(getattr(environment, "get_reward", None))  # TRL's own condition


RewardFunction: TypeAlias = Callable[..., Any]
"""`(prompts, completions, completion_ids, **columns) -> list[float | None]`, possibly async: TRL's
own signature."""


def as_sequence(reward_funcs: Any) -> list[Any]:
    """Return the rewards of a trainer's argument: one, a list of them, or None."""
    given: list[Any] = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    return [reward for reward in given if reward is not None]


def as_reward_functions(
    given: Sequence[Any], scorer: Mapping[str, Any] | None = None
) -> tuple[list[Any], Scorer]:
    """What TRL's trainer takes, made of what ours takes.

    Args:
        given: Each is a `Reward`, a function with TRL's signature (sync or async), a reward model
            or its name. The last two go through as they are.
        scorer: Options of the scorer that runs the `Reward` objects.

    Returns:
        The functions, and that scorer.

    Raises:
        ConfigError: An option of the scorer is wrong.
    """
    rewards = [reward for reward in given if isinstance(reward, Reward)]
    shared = _SharedScores(Scorer.from_options(rewards, scorer or {}))
    return [_adapt(reward, shared) for reward in given], shared.scorer


def check_names(names: Sequence[str]) -> None:
    """Raise a ConfigError unless there is a reward, and no two of one name."""
    if not names:  # in TRL's words, which users know and search for
        raise ConfigError(
            "No reward source provided. Pass `reward_funcs`, or an `environment_factory` whose "
            "environment defines a `get_reward` method."
        )
    check_distinct(names)


def check_references(given: Sequence[Any], *datasets: Any) -> None:
    """Raise unless each dataset has the column that `Reward` objects judge against.

    Args:
        given: As for `as_reward_functions`.
        datasets: Datasets, mappings of them by name, or None. What does not know its columns
            beforehand, as a stream or one with a transform, passes.

    Raises:
        ConfigError: There is a `Reward`, and a dataset without the column `reference`.
    """
    rewards = [reward for reward in given if isinstance(reward, Reward)]
    if not rewards:
        return
    for dataset in datasets:
        for each in dataset.values() if isinstance(dataset, dict) else [dataset]:
            columns = None if _is_transformed(each) else getattr(each, "column_names", None)
            if columns is not None and "reference" not in columns:
                raise _no_reference(rewards[0], columns)


def _is_transformed(dataset: Any) -> bool:
    """Whether the columns are made when a row is asked for."""
    form = getattr(dataset, "format", None)
    return isinstance(form, dict) and form.get("type") == "custom"


def reward_names(functions: Sequence[Any]) -> list[str]:
    """The names that TRL gives to reward functions and reward models."""
    return [_name(function) for function in functions]


def _name(reward: Any) -> str:
    if isinstance(reward, str):
        return reward.split("/")[-1]
    if _is_function(reward):
        return get_callable_name(reward)
    return get_config_model_id(reward.config).split("/")[-1]


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """What the model wrote: the contents of its chat messages, or the plain text itself."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def _is_function(reward: Any) -> bool:
    return callable(reward) and not hasattr(reward, "forward")  # a reward model is an nn.Module


def _adapt(reward: Any, shared: "_SharedScores") -> Any:
    if isinstance(reward, Reward):
        return _from_reward(reward, shared)
    if not _is_function(reward):
        return reward
    return _checked_async(reward) if is_async_callable(reward) else _checked(reward)


class _SharedScores:
    """Scores each batch once, with all rewards, though TRL asks for one reward after the other."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._completions: list[Any] | None = None
        self._scores: Scores | None = None

    def of(
        self, completions: list[Any], completion_ids: list[Any], references: list[Any]
    ) -> Scores:
        """The scores of this batch: TRL passes the very same list for each reward."""
        if self._scores is None or completions is not self._completions:
            self._scores = self.scorer.score(
                [completion_text(completion) for completion in completions],
                references,
                num_tokens=[len(ids) for ids in completion_ids],
            )
            self._completions = completions
        return self._scores


def _from_reward(reward: Reward, shared: _SharedScores) -> RewardFunction:
    def function(
        *,
        completions: list[Any],
        completion_ids: list[Any],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float | None]:
        if "reference" not in columns:
            raise _no_reference(reward, [k for k, v in columns.items() if isinstance(v, list)])
        scores = shared.of(completions, completion_ids, columns["reference"])
        count = len(completions)
        log_metric(f"rewards/{reward.name}/failed", scores.failed(reward.name) / count)
        for kind, failed in scores.kinds(reward.name).items():
            slug = kind.lower().replace(" ", "_")
            log_metric(f"rewards/{reward.name}/failed_{slug}", failed / count)
        values = scores.values[:, shared.scorer.rewards.index(reward)].tolist()
        return [None if math.isnan(value) else value for value in values]

    function.__name__ = reward.name
    return function


def _no_reference(reward: Reward, columns: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"reward {reward.name!r} needs the dataset column 'reference' (a dict per row); the "
        f"columns are: {', '.join(sorted(columns))}"
    )


def _checked(function: RewardFunction) -> RewardFunction:
    name = get_callable_name(function)

    def checked(*, completions: list[Any], **kwargs: Any) -> list[float | None]:
        try:
            values = function(completions=completions, **kwargs)
        except Exception as error:
            raise _raised(name, error) from error
        return _check_values(name, values, len(completions))

    return _named_like(checked, function, name)


def _checked_async(function: RewardFunction) -> RewardFunction:
    name = get_callable_name(function)

    async def checked(*, completions: list[Any], **kwargs: Any) -> list[float | None]:
        try:
            values = await function(completions=completions, **kwargs)
        except Exception as error:
            raise _raised(name, error) from error
        return _check_values(name, values, len(completions))

    return _named_like(checked, function, name)


def _named_like(checked: RewardFunction, function: RewardFunction, name: str) -> RewardFunction:
    functools.update_wrapper(checked, function, assigned=("__module__", "__doc__"), updated=())
    checked.__name__ = name
    return checked


def _raised(name: str, error: Exception) -> RewardError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return RewardError(
        f"reward {name!r} raised {type(error).__name__}: {str(error)[:300]!r} ({frame.filename}, "
        f"line {frame.lineno}). A reward must return a number or None for whatever a model writes: "
        "catch what can fail, and return None where the reward does not apply"
    )


def _check_values(name: str, values: Any, count: int) -> list[float | None]:
    try:
        checked = [None if value is None else float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(
            f"reward {name!r} returned {values!r:.200}; it must return a list with one float or "
            f"None per completion ({error})"
        ) from error
    if len(checked) != count:
        raise RewardError(
            f"reward {name!r} returned {len(checked)} values for {count} completions; it must "
            f"return one float or None per completion, in their order"
        )
    for i, value in enumerate(checked):
        if value is not None and not math.isfinite(value):
            raise RewardError(
                f"reward {name!r} returned {value} for completion {i} of {count}; return a finite "
                f"number, or None where the reward does not apply"
            )
    return checked
