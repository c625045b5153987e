"""Names the arrays and numbers that estimators take and return."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from gdpo._shapes import Float, Real

Number: TypeAlias = float | int
"""An option with one number, not a bool."""

Rewards: TypeAlias = Real[Any, "prompt sample reward"]
"""Raw rewards, each in its own unit. NaN means that the reward does not apply to this rollout, or
that the rollout is padding."""

Weights: TypeAlias = Real[Any, "*own reward"] | Sequence[Any]
"""Importance of each reward (dimensionless): one weight per reward, or one per prompt and reward. A
reward with weight 0 is ignored. NaN in `[prompt, reward]` means that the reward does not apply to
this prompt. `[prompt, 1, reward]` is accepted as well."""

PerReward: TypeAlias = Real[Any, " reward"] | Sequence[float | int] | None
"""An option with one number per reward, in that reward's unit. NaN: no value for this reward.
None: no value for any reward."""

PerRollout: TypeAlias = Real[Any, "prompt sample"] | None
"""An option with one number per rollout. None: no value for any rollout."""

Advantages: TypeAlias = Float[Any, "prompt sample"]
"""Factor by which the policy gradient of each rollout is multiplied."""
