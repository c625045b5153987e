"""Rewards that environments own, known by name before TRL makes its trainer.

TRL adds a reward for each class of environment that has a method `get_reward`: after those of the
reward functions, under the name of the class, with weight 1.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from transformers import set_seed

from gdpo.advantages import weights_by_name


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
