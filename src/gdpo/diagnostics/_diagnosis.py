"""The result of `diagnose`: what each reward does in a batch, and what the batch does with them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, TypeAlias

from gdpo.diagnostics._finding import Finding, Severity
from gdpo.diagnostics._influence import Influence

Matrix: TypeAlias = tuple[tuple[float, ...], ...]
"""Rows of one number per reward."""

_LOGGED_OF_REWARDS = (
    "mean",
    "group_std",
    "dead_groups",
    "missing",
    "saturation",
    "influence",
    "influence_share",
)
_LOGGED_OF_BATCH = (
    "conflict",
    "silent_groups",
    "batch_gain",
    "live_rms",
    "largest",
    "distinct",
    "distinct_grpo",
    "same_as_grpo",
)


@dataclass(frozen=True, slots=True)
class RewardDiagnosis:
    """One reward in a batch. `None`: there is nothing to compute it from."""

    name: str
    weight: float
    low: float | None
    """Declared lowest value, in the unit of the reward."""
    high: float | None
    """Declared highest value."""
    mean: float | None
    """Over the rollouts that it applies to."""
    missing: float
    """Share of the batch's values that are missing."""
    groups: int
    """Groups that it applies to."""
    dead_groups: float | None
    """Share of them in which it does not vary."""
    group_std: float | None
    """Sample standard deviation in a group, mean over the groups that it applies to."""
    live_std: float | None
    """The same, median over the groups in which it varies: the typical spread."""
    saturation: float | None
    """Where the mean lies in the declared range: 0 at the bottom, 1 at the top."""
    weight_share: float | None
    """|w_k| / Σ|w|; over several steps the mean over their groups."""
    influence: float | None
    """Mean of A z_k over the rollouts of the batch: how fast the update raises the reward, in units
    of its standard deviation in a group. Its sign is the direction in which it is pushed."""
    influence_share: float | None
    """Influence / Σ|influence| over the rewards that have a weight; negative: against the weight.
    None: no reward has any influence."""
    influence_margin: float | None
    """Half of the 95 % interval of `influence_share`; None: fewer than two groups."""
    below_resolution: float | None
    """Share of the groups that it applies to whose values differ, but by no more than rounding in
    the type that they came in: they count as equal."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A batch of rewards, and what an estimator made of it. `None`: nothing to compute it from."""

    estimator: str | None
    """Name of what made the advantages; None: unknown."""
    prompts: int
    samples: int
    """Per prompt, with padding."""
    rollouts: int
    """Those that have a reward."""
    rewards: tuple[RewardDiagnosis, ...]
    correlation: Matrix
    """Of z-scores, over the groups in which both rewards vary; NaN where there is none."""
    degrees: Matrix
    """Degrees of freedom of each correlation: samples less one, summed over these groups."""
    conflict: float | None
    """Share of rollouts in which one w_k z_k is above 0 and another below."""
    chance_conflict: float | None
    """The share to expect if the rewards of a group had nothing to do with each other."""
    silent_groups: float
    """Share of groups whose advantages are all exactly 0."""
    batch_gain: float | None
    """1 / standard deviation of Σ w_k z_k over the batch: what GDPO's batch step multiplies with.
    """
    live_rms: float | None
    """Root mean square of the advantages in the groups that are not silent."""
    largest: float
    """Largest size of an advantage."""
    distinct: float | None
    """Different advantages in a group, mean over the groups that are not silent."""
    distinct_grpo: float | None
    """The same under GRPO, in the same groups."""
    same_as_grpo: float | None
    """Correlation of the advantages with GRPO's, over the rollouts that have a reward."""
    influence: Influence = field(compare=False, repr=False)
    """The sums behind the influence shares, to be added up over steps."""
    precision: str = "float64"
    """Floating-point type that the rewards came in."""
    findings: tuple[Finding, ...] = ()
    """Worst first."""

    def metrics(self) -> dict[str, float]:
        """Flat, for loggers: `diagnostics/<reward>/<number>` and `diagnostics/<number>`.

        `diagnostics/findings` counts all findings, `diagnostics/warnings` those that matter. What
        is not known is left out.
        """
        of_rewards = {
            f"diagnostics/{reward.name}/{field}": getattr(reward, field)
            for reward in self.rewards
            for field in _LOGGED_OF_REWARDS
        }
        of_batch = {f"diagnostics/{field}": getattr(self, field) for field in _LOGGED_OF_BATCH}
        warnings = sum(finding.severity is Severity.WARNING for finding in self.findings)
        counts = {
            "diagnostics/findings": float(len(self.findings)),
            "diagnostics/warnings": float(warnings),
        }
        every = of_rewards | of_batch | counts
        return {key: float(value) for key, value in every.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and text, ready for JSON; NaN becomes None."""
        return _plain({k: v for k, v in asdict(self).items() if k != "influence"})

    def summary(self) -> str:
        """A table of the rewards, the batch and the findings, for a terminal; about 20 lines."""
        from gdpo.diagnostics._summary import summary  # it needs this class

        return summary(self)

    def __str__(self) -> str:
        return self.summary()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return value if not isinstance(value, float) or isfinite(value) else None
