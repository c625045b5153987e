"""Provides a gdpo estimator to prime-rl as a class for its `ALGORITHM_CLASSES`.

Copy this file as gdpo_prime_rl.py next to prime-rl's algorithms. docs/how-to/other_frameworks.md
has the settings.
"""

from typing import Any

from prime_rl.orchestrator.algo.base import Algorithm, iter_trainable_traces
from prime_rl.orchestrator.algo.routing import assign_advantages

from gdpo import ConfigError
from gdpo.integrations.rows import advantages_of_rows, make_settings


def algorithm(
    *,
    reward_keys: list[str],
    reward_weights: dict[str, float] | list[float] | None = None,
    estimator: str = "gdpo",
    options: dict[str, Any] | None = None,
) -> type[Algorithm]:
    """Return a subclass of prime-rl's `Algorithm`.

    prime-rl passes one group at a time, and creates one object per environment, with its own state.
    prime-rl's checkpoints do not contain this state.

    Args:
        reward_keys: Names in `Trace.rewards`, whose scores are used. None: does not apply.
        reward_weights: One weight per key, or a dict from name to weight. Default: all 1.
        estimator: Name of a gdpo estimator, or `module:attribute`.
        options: Options of the estimator. `gdpo` has `scale_half_life=128` unless it is set.
    """
    half_life = {"scale_half_life": 128} if estimator == "gdpo" else {}
    chosen = (estimator, reward_keys, reward_weights, {**half_life, **(options or {})})
    make_settings(*chosen)  # wrong settings are refused before prime-rl creates anything

    class GDPOAlgorithm(Algorithm):
        """Assigns an advantage to every trace of a group."""

        def __init__(self, config: Any, policy_pool: Any) -> None:
            super().__init__(config, policy_pool)
            if getattr(config, "length_penalty", None) is not None:
                raise ConfigError(
                    "algo.length_penalty changes only the sum of the rewards, which the estimator "
                    "does not use: remove it, and return the length as a separate reward"
                )
            self.settings = make_settings(*chosen)

        async def score_group(self, episodes: list[Any]) -> None:
            traces = [trace for _, trace in iter_trainable_traces(episodes)]
            advantages = advantages_of_rows(
                [{name: r and r.score for name, r in trace.rewards.items()} for trace in traces],
                self.settings,
                [0] * len(traces),
                [sum(sum(node.mask) for node in trace.nodes) for trace in traces],
                given_by="the environment",
            )
            for trace, advantage in zip(traces, advantages.tolist(), strict=True):
                assign_advantages(trace, advantage)

    return GDPOAlgorithm
