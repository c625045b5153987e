"""Defines the environment that NeMo-RL finds in its registry: a Ray actor around `Rewarder`.

The class is created on first access, because its definition imports ray and NeMo-RL.
"""

from functools import cache
from importlib import import_module
from typing import Any

from gdpo.integrations.nemo_rl._environment import Rewarder

ACTOR = "GdpoEnvironment"
PATH = f"{__name__}.{ACTOR}"
"""The import path of the actor class, for NeMo-RL's registry."""

_AT_ONCE = 64
"""Maximum number of concurrent calls to an actor. Each async rollout is scored in its own call."""


def __getattr__(name: str) -> Any:
    if name == ACTOR:
        return _actor()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _actor() -> Any:
    ray: Any = import_module("ray")
    interfaces: Any = import_module("nemo_rl.environments.interfaces")
    return ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=_AT_ONCE)(
        environment_class(interfaces.EnvironmentInterface, interfaces.EnvironmentReturn)
    )


def environment_class(interface: Any, environment_return: Any) -> type[Any]:
    """Return a single-turn environment class that scores the response and ends the episode.

    Args:
        interface: NeMo-RL's `EnvironmentInterface`.
        environment_return: NeMo-RL's `EnvironmentReturn`.
    """
    torch: Any = import_module("torch")

    class GdpoEnvironment(interface):
        def __init__(self, cfg: Any) -> None:
            self._rewarder = Rewarder(cfg)

        def step(self, message_log_batch: Any, metadata: Any) -> Any:
            rewards = self._rewarder.score(message_log_batch, metadata)
            count = len(message_log_batch)
            return environment_return(
                observations=[{"role": "environment", "content": ""} for _ in range(count)],
                metadata=metadata,
                next_stop_strings=[None] * count,
                rewards={k: torch.tensor(v, dtype=torch.float32) for k, v in rewards.items()},
                terminateds=torch.ones(count),
                answers=None,
            )

        def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
            return batch, {}

        def shutdown(self) -> None:
            """Do nothing, because the worker processes exit with this process."""

    return GdpoEnvironment
