"""Replaces ms-swift's two advantage functions for runs with `--scale_rewards gdpo`."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from gdpo.advantages import resolve_estimator
from gdpo.advantages.registry import check_advantages
from gdpo.errors import ConfigError
from gdpo.integrations._scoring import Judge, as_reference
from gdpo.integrations.rows import as_groups
from gdpo.rewards.text import content_text

logger = logging.getLogger(__name__)


def register_rewards(*, column: str = "reference", **options: Any) -> None:
    """Register rewards in ms-swift's `orms`, so that `--reward_funcs` can select them by name.

    Args:
        column: Name of the dataset column that contains the reference, either a JSON object as
            text or a dict.
        options: Keys that define the rewards. `task` is the name of a task or `module:attribute`.
            `rewards` is a list of rewards (default: all rewards of the task). Each reward is the
            name of one of the task's rewards, the name of a built-in reward, `module:attribute`, or
            `{name: ..., options: {...}}`. `gates` is a dict, for example
            `{length: {on: correct, at_least: 1}}`. All other keys (`on_error`, `workers`, ...) are
            options of `gdpo.rewards.Scorer`.

    Raises:
        ConfigError: If an option is unknown or invalid.
    """
    rewards = import_module("swift.rewards")
    judge = Judge(options, place="register_rewards")

    @lru_cache(maxsize=1)  # ms-swift requests the rewards of a batch one after the other
    def scores(completions: tuple[str, ...], references: str, counts: tuple[int, ...]) -> Any:
        return judge.score(completions, json.loads(references), num_tokens=counts or None)

    def made(name: str, place: int) -> type[Any]:
        def score(
            self: Any,  # noqa: ARG001  it becomes a method
            completions: Sequence[Any],
            response_token_ids: Sequence[Any] = (),
            **columns: Any,
        ) -> list[float | None]:
            references = json.dumps(_references(name, column, columns))
            counts = _lengths(judge.of_tokens, response_token_ids) if judge.of_tokens else ()
            # ms-swift passes the content of the model's last message.
            texts = tuple(map(content_text, completions))
            values = scores(texts, references, counts)[:, place]
            return [None if value != value else value for value in values.tolist()]

        return type(name, (rewards.ORM,), {"__call__": score})  # ms-swift logs the class name

    for place, name in enumerate(judge.names):
        if name in rewards.orms:
            logger.warning("the reward %r of gdpo replaces ms-swift's reward of that name", name)
        rewards.orms[name] = made(name, place)


def _references(name: str, column: str, columns: dict[str, Any]) -> list[dict[str, Any]]:
    if column not in columns:
        raise ConfigError(
            f"reward {name!r} needs the dataset column {column!r}, which does not exist: add this "
            "column (one JSON object as text per row), or pass column=... to register_rewards"
        )
    return [as_reference(row, place=f"column {column!r}") for row in columns[column]]


def _lengths(of_tokens: str, response_token_ids: Sequence[Any]) -> tuple[int, ...]:
    """Return the number of tokens of each response.

    The token ids for a multi-turn conversation are a list of lists, one list per turn.
    """
    lengths = [
        sum(len(part) if isinstance(part, list) else 1 for part in ids or ())
        for ids in response_token_ids
    ]
    if not lengths or not all(lengths):
        raise ConfigError(
            f"reward {of_tokens!r} needs token counts, but ms-swift returns no token ids in this "
            "generation mode: use a reward that reads the text"
        )
    return tuple(lengths)


TESTED = "4.5.3 and 4.6.0"
"""Versions of ms-swift on which the conformance script was run."""

_MODULE = "swift.rl_core.advantage"
_COMMON = (
    *("rewards_per_func", "reward_weights", "advantage_estimator", "scale_rewards"),
    *("kl_in_reward", "beta"),
)
_FUNCTIONS = {
    "compute_advantages": (*_COMMON, "num_generations"),
    "compute_advantages_dynamic": (*_COMMON, "prompt_ids", "request_ids"),
}
"""ms-swift's functions that are replaced, with the parameters that gdpo reads."""


def use_estimator(name: str = "gdpo") -> None:
    """Use a gdpo estimator to compute advantages in runs with `--scale_rewards gdpo`.

    Args:
        name: The estimator's key in `gdpo.advantages.ESTIMATORS`, or `module:attribute`. The
            estimator's options cannot be set.

    Raises:
        ConfigError: If the estimator is unknown, or if this ms-swift does not have the functions
            that gdpo replaces.
    """
    functions = _functions()
    swift = [module for key, module in sys.modules.items() if key.partition(".")[0] == "swift"]
    for function in functions:
        replaced = with_estimator(function, name)
        for module in swift:
            if vars(module).get(function.__name__) is function:
                setattr(module, function.__name__, replaced)


def _functions() -> list[Callable[..., Any]]:
    """Return ms-swift's functions that gdpo replaces, or raise a `ConfigError`."""
    try:
        advantage: Any = import_module(_MODULE)
    except ModuleNotFoundError as error:
        if error.name not in (_MODULE, _MODULE.rpartition(".")[0]):
            raise  # ms-swift itself, or a package that it needs, is not installed
        advantage = None
    found = [getattr(advantage, name, None) for name in _FUNCTIONS]
    for function, (name, needed) in zip(found, _FUNCTIONS.items(), strict=True):
        if function is None or not set(needed) <= set(signature(function).parameters):
            raise ConfigError(
                f"use_estimator needs {_MODULE}.{name}({', '.join(needed)}), which ms-swift "
                f"{import_module('swift').__version__} does not have: install a version on which "
                f"gdpo was tested ({TESTED}), or remove the call to use ms-swift's own GDPO"
            )
    return [function for function in found if function is not None]


def with_estimator(compute: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap one of ms-swift's advantage functions to compute advantages with this estimator."""
    estimator = resolve_estimator(name)

    @wraps(compute)
    def computed(**given: Any) -> tuple[Any, Any]:
        if given["scale_rewards"] != "gdpo":
            return compute(**given)
        if given["advantage_estimator"] != "grpo" or (given["kl_in_reward"] and given["beta"]):
            raise ConfigError(
                f"--advantage_estimator {given['advantage_estimator']} and --kl_in_reward "
                f"{given['kl_in_reward']} have no effect with the estimator {name!r}: set "
                "--advantage_estimator grpo and --kl_in_reward false"
            )
        _, totals = compute(**given)  # ms-swift logs the totals
        rows = range(len(given["rewards_per_func"]))
        requests = given.get("request_ids", rows)
        prompts = given.get("prompt_ids") or [row // given["num_generations"] for row in rows]
        last = {request: row for row, request in enumerate(requests)}
        rewards = given["rewards_per_func"].double().cpu().numpy()
        ones = np.ones(len(rewards), dtype=np.int64)
        groups = as_groups(rewards, prompts, ones, outputs=[last[request] for request in requests])
        advantages = estimator(groups.rewards, given["reward_weights"].double().cpu().numpy())
        check_advantages(advantages, groups.rewards, name)
        return given["rewards_per_func"].new_tensor(groups.per_row(advantages)), totals

    return computed
