"""ms-swift's two functions for advantages, replaced where `--scale_rewards gdpo` is set."""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from importlib import import_module
from typing import Any

import numpy as np

from gdpo.advantages import resolve_estimator
from gdpo.advantages.registry import check_advantages
from gdpo.errors import ConfigError
from gdpo.integrations._scoring import Judge, as_reference
from gdpo.integrations.rows import as_groups

logger = logging.getLogger(__name__)


def register_rewards(*, column: str = "reference", **options: Any) -> None:
    """Put rewards into ms-swift's `orms`, each under its own name, for `--reward_funcs`.

    Args:
        column: Of the dataset: what rewards judge against, a JSON object as text, or a dict.
        options: `task`: a name or `module:attribute`. `rewards`: names of its rewards, of built-in
            ones, or `module:attribute`, or `{name: ..., options: {...}}`; left out: all of the
            task. `gates`: `{length: {on: correct, at_least: 1}}`. `on_error`, `workers`, ...:
            options of `gdpo.rewards.Scorer`.

    Raises:
        ConfigError: Wrong options.
    """
    rewards = import_module("swift.rewards")
    judge = Judge(options, place="register_rewards")

    @lru_cache(maxsize=1)  # the rewards of a batch are asked for one after the other
    def scores(completions: tuple[str, ...], references: str, counts: tuple[int, ...]) -> Any:
        return judge.score(completions, json.loads(references), num_tokens=counts or None)

    def made(name: str, place: int) -> type[Any]:
        def score(
            self: Any,  # noqa: ARG001  it becomes a method
            completions: Sequence[str],
            response_token_ids: Sequence[Any] = (),
            **columns: Any,
        ) -> list[float | None]:
            references = json.dumps(_references(name, column, columns))
            counts = _lengths(judge.of_tokens, response_token_ids) if judge.of_tokens else ()
            values = scores(tuple(completions), references, counts)[:, place]
            return [None if value != value else value for value in values.tolist()]

        return type(name, (rewards.ORM,), {"__call__": score})  # logs have the name of the class

    for place, name in enumerate(judge.names):
        if name in rewards.orms:
            logger.warning("the reward %r of gdpo takes the place of ms-swift's own", name)
        rewards.orms[name] = made(name, place)


def _references(name: str, column: str, columns: dict[str, Any]) -> list[dict[str, Any]]:
    if column not in columns:
        raise ConfigError(
            f"reward {name!r} judges against the column {column!r} of the dataset, which is not "
            "there: write a JSON object as text into it, or name another with register_rewards"
        )
    return [as_reference(row, place=f"column {column!r}") for row in columns[column]]


def _lengths(of_tokens: str, response_token_ids: Sequence[Any]) -> tuple[int, ...]:
    """Tokens of each response; a conversation has a list for each turn."""
    lengths = [
        sum(len(part) if isinstance(part, list) else 1 for part in ids or ())
        for ids in response_token_ids
    ]
    if not lengths or not all(lengths):
        raise ConfigError(
            f"reward {of_tokens!r} judges the number of tokens, which ms-swift does not give with "
            "this way of generating; use a reward that judges the text"
        )
    return tuple(lengths)


VERSIONS = ("4.6.",)
"""Of ms-swift: those whose functions are known here."""


def use_estimator(name: str = "gdpo") -> None:
    """Compute advantages by an estimator of ours wherever `--scale_rewards gdpo` is set.

    Args:
        name: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`; one without options.

    Raises:
        ConfigError: An unknown estimator, or a version of ms-swift that is not known here.
    """
    version = import_module("swift").__version__
    if not version.startswith(VERSIONS):
        raise ConfigError(
            f"use_estimator replaces functions of ms-swift {VERSIONS[0]}x; this is {version}. "
            "Leave it out: --scale_rewards gdpo is then ms-swift's own"
        )
    advantage = import_module("swift.rl_core.advantage")
    swift = [module for key, module in sys.modules.items() if key.partition(".")[0] == "swift"]
    for function in (advantage.compute_advantages, advantage.compute_advantages_dynamic):
        replaced = with_estimator(function, name)
        for module in swift:
            if vars(module).get(function.__name__) is function:
                setattr(module, function.__name__, replaced)


def with_estimator(compute: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`compute_advantages`, or its form for samples with ids; both get the rewards one by one."""
    estimator = resolve_estimator(name)

    @wraps(compute)
    def computed(**given: Any) -> tuple[Any, Any]:
        if given["scale_rewards"] != "gdpo":
            return compute(**given)
        if given["advantage_estimator"] != "grpo" or (given["kl_in_reward"] and given["beta"]):
            raise ConfigError(
                f"--advantage_estimator {given['advantage_estimator']} and --kl_in_reward "
                f"{given['kl_in_reward']} have no effect on the estimator {name!r}, which takes "
                "their place: leave them at grpo and false"
            )
        _, totals = compute(**given)  # they are logged
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
