"""Provides rewards (`--reward_funcs`) and an estimator (`--scale_rewards gdpo`) to ms-swift.

Copy this file as gdpo_ms_swift.py next to your plugin. docs/how-to/ms_swift.md has the settings.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
from swift.rewards import ORM, orms
from swift.rl_core import advantage

from gdpo import ConfigError, DataError, Reward
from gdpo.advantages import resolve_estimator
from gdpo.integrations.rows import Settings, advantages_of_rows, make_settings
from gdpo.rewards import Gate, Scorer, apply_gates


def register_rewards(
    rewards: Sequence[Reward],
    *,
    gates: Mapping[str, Gate] | None = None,
    column: str = "reference",
    **options: Any,
) -> None:
    """Register rewards in ms-swift's `orms`, so that `--reward_funcs` can select them by name.

    Args:
        rewards: Rewards with distinct names, for example those of a task.
        gates: Gates, keyed by the name of the gated reward.
        column: Column of the dataset with the references, each a dict or a JSON object as text.
        options: Options of `Scorer`.
    """
    names, scorer = [reward.name for reward in rewards], Scorer(rewards, **options)

    @lru_cache(maxsize=1)  # ms-swift requests the rewards of a batch one after the other
    def scores(batch: str) -> np.ndarray:
        contents, references, tokens = json.loads(batch)
        messages = [[{"role": "assistant", "content": content}] for content in contents]
        known = tokens if tokens and all(tokens) else None
        scored = scorer.score(messages, references, num_tokens=known)
        return apply_gates(scored.values, names, gates or {})

    def made(place: int) -> type[ORM]:
        def score(self: Any, completions: Any, response_token_ids: Any = (), **columns: Any) -> Any:
            rows = [json.loads(r) if isinstance(r, str) else r for r in columns.get(column, [None])]
            if not all(isinstance(row, dict) for row in rows):
                raise DataError(f"column {column!r} needs a dict, or its JSON text, in each row")
            tokens = [sum(np.size(turn) for turn in ids or ()) for ids in response_token_ids]
            values = scores(json.dumps([list(completions), rows, tokens]))[:, place]
            return [None if np.isnan(value) else value for value in values.tolist()]

        return type(names[place], (ORM,), {"__call__": score})  # ms-swift logs the class name

    orms.update({name: made(place) for place, name in enumerate(names)})


def use_estimator(name: str = "gdpo") -> None:
    """Compute advantages with a gdpo estimator in runs with `--scale_rewards gdpo`."""
    resolve_estimator(name)  # an unknown name is refused here

    @cache
    def settings_of(weights: tuple[float, ...]) -> Settings:
        return make_settings(name, [f"reward {k}" for k in range(len(weights))], weights, None)

    def computed(compute: Callable[..., Any], **given: Any) -> tuple[Any, Any]:
        if given["scale_rewards"] != "gdpo":
            return compute(**given)
        if given["advantage_estimator"] != "grpo" or (given["kl_in_reward"] and given["beta"]):
            raise ConfigError(
                f"--advantage_estimator {given['advantage_estimator']} and --kl_in_reward have no "
                f"effect with the estimator {name!r}: set them to grpo and false"
            )
        _, totals = compute(**given)  # ms-swift logs the totals
        rewards, size = given["rewards_per_func"], given.get("num_generations")
        settings = settings_of(tuple(given["reward_weights"].tolist()))
        rows = [dict(zip(settings.names, row, strict=True)) for row in rewards.tolist()]
        prompts = given.get("prompt_ids") or [row // size for row in range(len(rows))]
        ids = given.get("request_ids")
        values = advantages_of_rows(rows, settings, prompts, [1] * len(rows), rollout_ids=ids)
        return rewards.new_tensor(values), totals

    swift = [module for key, module in sys.modules.items() if key.partition(".")[0] == "swift"]
    for theirs in (advantage.compute_advantages, advantage.compute_advantages_dynamic):
        for module in swift:
            if vars(module).get(theirs.__name__) is theirs:
                setattr(module, theirs.__name__, partial(computed, theirs))
