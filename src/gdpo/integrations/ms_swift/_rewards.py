"""Rewards, tasks and gates of ours among ms-swift's `orms`."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from gdpo.errors import ConfigError
from gdpo.integrations._scoring import Judge, as_reference

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
