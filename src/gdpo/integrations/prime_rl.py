"""Provides gdpo's estimators to prime-rl as a class for its `ALGORITHM_CLASSES`."""

from importlib import import_module
from typing import Any

import numpy as np

from gdpo.errors import ConfigError
from gdpo.integrations._settings import Settings, make_settings
from gdpo.integrations.rows import advantages_of, as_groups, by_name, reward_columns

_HALF_LIFE = {"scale_half_life": 128}


def algorithm(
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> type[Any]:
    """Return a subclass of prime-rl's `Algorithm`.

    Put the class in the place of prime-rl's own: `ALGORITHM_CLASSES["grpo"] = algorithm(...)`.
    prime-rl passes one group at a time, and creates one object per environment. Each environment
    therefore has a state of its own, such as the running scale. prime-rl's checkpoints do not
    contain this state.

    Args:
        reward_keys: Names of the environment's rewards, in `Trace.rewards`. The score of each
            reward is used. A reward that is None does not apply to the trace.
        reward_weights: One weight per reward, in the order of `reward_keys`, or a dict from reward
            name to weight. The weights of the environment are not used. Default: all 1.
        estimator: The estimator's key in `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: The estimator's options, as a dict from name to value. `gdpo` has
            `scale_half_life=128` unless another value is set.

    Raises:
        ConfigError: If the settings are invalid. This error is also raised when a group is scored
            if no trace has one of the rewards, and when the algorithm is created if its
            configuration sets a length penalty.
    """
    chosen = {**(_HALF_LIFE if estimator == "gdpo" else {}), **(options or {})}
    settings = (estimator, reward_keys, reward_weights, chosen)
    make_settings(*settings)
    base = import_module("prime_rl.orchestrator.algo.base")
    routing = import_module("prime_rl.orchestrator.algo.routing")

    class GDPOAlgorithm(base.Algorithm):
        """Assigns an advantage to every trace of a group."""

        def __init__(self, config: Any, policy_pool: Any) -> None:
            super().__init__(config, policy_pool)
            if getattr(config, "length_penalty", None) is not None:
                raise ConfigError(
                    "algo.length_penalty changes only the sum of the rewards, which the estimator "
                    "does not use: remove it, and return the length as a separate reward"
                )
            self.settings = make_settings(*settings)

        async def score_group(self, episodes: list[Any]) -> None:
            traces = [trace for _, trace in base.iter_trainable_traces(episodes)]
            advantages = advantages_of_traces(traces, self.settings)
            for trace, advantage in zip(traces, advantages.tolist(), strict=True):
                routing.assign_advantages(trace, advantage)

    return GDPOAlgorithm


def advantages_of_traces(traces: list[Any], settings: Settings) -> np.ndarray:
    """Return the advantage of each trace of a group, and update the estimator's state."""
    scores = [
        {name: reward and reward.score for name, reward in trace.rewards.items()}
        for trace in traces
    ]
    rewards = reward_columns(by_name(scores), settings.names, given_by="the environment")
    counts = np.array([sum(sum(node.mask) for node in trace.nodes) for trace in traces])
    groups = as_groups(rewards, [0] * len(traces), counts)
    return groups.per_row(advantages_of(groups, settings))
