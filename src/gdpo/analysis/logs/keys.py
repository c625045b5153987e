"""Tells which reward and which of its numbers a logged key belongs to."""

import re
from collections.abc import Collection

from gdpo.rollouts.readers.metrics import reward_in

FIELDS = ("mean", "std", "group_std", "zero_variance_groups", "influence_share")
"""Numbers of a reward: `std` is over the batch, `group_std` over the samples of a prompt."""
_OF_REWARD = re.compile(
    rf"(?:train/)?(?:rewards|diagnostics|gdpo)/(.+)/({'|'.join(FIELDS)})", re.DOTALL
)
"""Keys of TRL's trainers, of `GDPOTrainer` and `watch`, and of gdpo's plugin for verl. Keys of
evaluations begin with `eval`."""


def field_of(key: str) -> tuple[str, str] | None:
    """Return the reward and the number, one of `FIELDS`, that a key stands for, or None.

    TRL up to 0.15 logs only the mean of each reward, as `rewards/NAME`.
    """
    if (match := _OF_REWARD.fullmatch(key)) is not None:
        return match[1], match[2]
    name = reward_in(key)
    return None if name is None else (name, "mean")


def without_unclear(keys: Collection[str]) -> list[str]:
    """Return the keys of a log, without `rewards/NAME` if it has `rewards/NAME/mean` too.

    Newer versions of TRL log further numbers of a reward under names of their own.
    """
    newer = any(_OF_REWARD.fullmatch(key) for key in keys)
    return [key for key in keys if not newer or _OF_REWARD.fullmatch(key)]
