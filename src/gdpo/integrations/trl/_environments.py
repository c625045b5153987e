"""Finds the rewards that environments define, and passes the environments to TRL.

TRL takes one number per rollout, which an environment returns from `get_reward`. An environment of
`GDPOTrainer` may also return one number per turn, from `get_turn_rewards`.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from transformers import set_seed

from gdpo.errors import ConfigError, RewardError
from gdpo.integrations._turns import is_per_turn
from gdpo.integrations.trl._turns import Located, total_of
from gdpo.rewards.calls import as_number
from gdpo.rewards.reward import DeclaredRange

_TURN_REWARDS = "get_turn_rewards"


def environment_rewards(environment_factory: Any, seed: int) -> tuple[list[type], Any]:
    """Return the environment classes that define a reward, and the factory to pass to TRL.

    As in TRL, a reward has the name of its class, the classes are in TRL's order, and the seed is
    set before a factory is called. A class that defines `get_turn_rewards` is replaced by a
    subclass in which TRL sees a reward and no tool of that name. A factory that is not a class is
    called once, and TRL receives the result as its first environment.
    """
    if environment_factory is None:
        return [], None
    several = isinstance(environment_factory, dict)
    factories: dict[Any, Any] = environment_factory if several else {None: environment_factory}
    if not all(isinstance(factory, type) for factory in factories.values()):
        set_seed(seed)
    for_trl: dict[type, type] = {}
    known = {name: _probed(factory, for_trl) for name, factory in factories.items()}
    owners = list(dict.fromkeys(made for made, _ in known.values() if _owns_reward(made)))
    given = {name: factory for name, (_, factory) in known.items()}
    return owners, given if several else given[None]


def environment_range(environment: type) -> DeclaredRange | None:
    """Return the `reward_range` `(low, high)` that an environment class declares, or None."""
    name, declared = environment.__name__, getattr(environment, "reward_range", None)
    if declared is None:
        return None
    try:
        low, high = declared
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"environment {name!r}: reward_range must be (low, high), got {declared!r:.80}"
        ) from error
    return DeclaredRange(name, low, high)


def turn_reward(environment: type, located: Located) -> Callable[..., Any] | None:
    hidden = vars(environment).get(_TURN_REWARDS)
    if not isinstance(hidden, _Hidden):
        return None

    def calls(
        *, environments: list[Any], completions: list[Any], completion_ids: list[Any], **_: Any
    ) -> list[Any]:
        messages = located.messages(completions, completion_ids) if hidden.takes_messages else None
        return [
            hidden.called(each, None if messages is None else messages[i])
            if type(each) is environment
            else (None, None)
            for i, each in enumerate(environments)
        ]

    def function(**columns: Any) -> list[Any]:
        return [hidden.agreed(i, *each) for i, each in enumerate(calls(**columns))]

    async def later(**columns: Any) -> list[Any]:
        return [
            hidden.agreed(i, await _awaited(turns), await _awaited(total))
            for i, (turns, total) in enumerate(calls(**columns))
        ]

    return later if hidden.is_async else function


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Hidden:
    """Hides `get_turn_rewards` from TRL, which makes a tool of every public method."""

    def __init__(self, environment: type) -> None:
        self._name = environment.__name__
        self._turns: Any = getattr(environment, _TURN_REWARDS)
        self._total: Any = environment.get_reward if _owns_reward(environment) else None
        self.takes_messages = "messages" in inspect.signature(self._turns).parameters
        self.is_async = any(map(inspect.iscoroutinefunction, (self._turns, self._total)))

    def __get__(self, instance: Any, owner: type) -> Any:
        # TRL looks for functions and methods. A partial is neither.
        return self if instance is None else functools.partial(self._turns, instance)

    def called(self, environment: Any, messages: Any) -> tuple[Any, Any]:
        given = [messages] if self.takes_messages else []
        total = None if self._total is None else self._total(environment)
        return self._turns(environment, *given), total

    def agreed(self, index: int, turns: Any, total: Any) -> Any:
        """Return the rewards of the turns. Their total must be what `get_reward` returns."""
        if total is None or turns is None:
            return turns
        added = total_of(self._name, turns, index, len(turns)) if is_per_turn(turns) else turns
        a, b = as_number(added), as_number(total)
        if a is None or b is None or not math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9):
            raise RewardError(
                f"environment {self._name!r}, completion {index}: get_turn_rewards returned "
                f"{turns!r:.200}, with the total {added!r:.80}, but get_reward returned "
                f"{total!r:.80}. Both are the same reward: return the total from get_reward, or "
                "remove get_reward. To add a separate reward, pass a reward function that reads "
                "`environments`"
            )
        return turns


def _for_trl(environment: type) -> type:
    """Return the class, or a subclass that has `get_reward` and hides `get_turn_rewards`."""
    if not inspect.isfunction(getattr(environment, _TURN_REWARDS, None)):
        return environment
    hidden = _Hidden(environment)

    def get_reward(_: Any) -> Any:
        raise AssertionError("GDPOTrainer replaces the function that calls this method")

    async def later(self: Any) -> Any:
        return get_reward(self)

    members = {
        "__slots__": (),  # so that objects of the class can become objects of the subclass
        "__module__": environment.__module__,
        "__qualname__": environment.__qualname__,
        "__doc__": environment.__doc__,
        _TURN_REWARDS: hidden,
        "get_reward": later if hidden.is_async else get_reward,
    }
    return type(environment.__name__, (environment,), members)


def _probed(factory: Any, for_trl: dict[type, type]) -> tuple[type, Callable[[], Any]]:
    if isinstance(factory, type):
        made = for_trl.setdefault(factory, _for_trl(factory))
        return made, made
    waiting = [factory()]
    own = type(waiting[0])
    made = for_trl.setdefault(own, _for_trl(own))

    def create() -> Any:
        environment = waiting.pop() if waiting else factory()
        if type(environment) is own:
            environment.__class__ = made
        return environment

    return made, create


def _owns_reward(environment: type) -> bool:
    return inspect.isfunction(getattr(environment, "get_reward", None))  # TRL's own condition
