r"""Holds the estimators: one file each, with the formula, its source and an example.

To add an estimator, add a file with a function of the same name, and an oracle. `ESTIMATORS` holds
the function of every file.

Every estimator is called as `estimator(rewards, weights, **options)`, and returns the advantages
`[prompt, sample]`: dimensionless unless its docstring says otherwise, and 0 for a rollout without
any reward. In the formulas, $r_k$ is reward $k$ of a rollout, and $w_k$ its weight. $\bar r_k$ is
its mean and $\sigma_k$ its sample standard deviation in the group (the samples of one prompt), $z_k
= (r_k - \bar r_k) / \sigma_k$, and $s = \sum_k w_k r_k$. "norm" scales to mean 0 and standard
deviation 1. The mean of each group is 0, unless a docstring says otherwise.

All estimators share:

- `rewards`: Raw rewards, `[prompt, sample, reward]`, each in its own unit. NaN: the reward does not
  apply. Every statistic excludes missing values. Pad smaller groups with NaN. An infinite reward,
  an array with other axes, or an advantage outside the range of the dtype raises a `DataError`.
- `weights`: One weight per reward, or `[prompt, reward]`. Weights of normalized rewards are
  dimensionless and express importance. A suitable weight of a raw reward depends on its unit.
- `noise_floor`: Minimum standard deviation to divide each reward by, in the reward's unit, at least
  0, so that noise is not scaled up to the size of a signal. None: no floor.
- `max_advantage`: Clips advantages to this absolute value, which must be above 0. The mean of a
  group may then differ from 0. None: no clipping.
- An option of the wrong length or out of range raises a `ConfigError`.
- A reward that does not vary within a group contributes exactly 0 to it, and a group of one sample
  gets 0. If no reward varies in any group, all advantages are exactly 0. No ε is added to a
  denominator: TRL adds 1e-4 and verl 1e-6, and both divide a rounding error by ε.
- A missing reward is not counted as 0, as in TRL, and does not turn the batch into NaN, as in verl
  and NeMo-RL. Estimators that sum raw rewards (`rloo`, `grpo`, `grpo_*`) count it as
  average.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias

Estimator: TypeAlias = Callable[..., Any]
"""`(rewards[prompt, sample, reward], weights[reward], *, options) -> advantages[prompt, sample]`"""

_FILES = [module.name for module in iter_modules(__path__)]

ESTIMATORS: dict[str, Estimator] = {
    name: getattr(import_module(f"{__name__}.{name}"), name) for name in ("grpo", "gdpo", *_FILES)
}
"""Every estimator by name: the baseline, the default, and the others in alphabetical order."""
