"""Finds rewards that change their reference.

A scorer gives each call a copy of the reference, so a change has no effect on other calls.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gdpo.rewards.reward import Reference, Reward
from gdpo.rewards.scores import Scores


def unchanging(reward: Reward) -> Reward:
    """Return a reward that fails where the reward changes its reference."""
    return replace(reward, function=_Unchanging(reward.function))


def has_changed(scores: Scores) -> bool:
    """Return whether a reward from `unchanging` changed a reference in a batch."""
    return any(each.kind == f"raised {_ChangedError.__name__}" for each in scores.failures)


class _ChangedError(Exception):
    """Signals that a reward changed its reference."""


@dataclass(frozen=True, slots=True)
class _Unchanging:
    function: Callable[[Any, Reference], Any]

    def __call__(self, completion: Any, reference: Reference) -> Any:
        before = pickle.dumps(reference)  # objects and arrays may not define equality
        value = self.function(completion, reference)
        if pickle.dumps(reference) != before:
            raise _ChangedError
        return value
