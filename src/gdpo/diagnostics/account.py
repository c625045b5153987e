r"""Adds up what changed each reward over a window of training steps.

The mean of reward $j$ changes over the steps $t$ of a window by

$$ \sum_t \langle a_j, U_t \rangle = \sum_k \sum_t \langle a_j, U_{k,t} \rangle + \text{rest}, $$

to first order. $U_t$ is the step of the optimizer. $U_{k,t}$ is the part of it that reward $k$ has
put into the momentum since the start of the window. The rest comes from older momentum, from weight
decay, and from every term of the loss that is not a reward. $a_j$ is the gradient of the expected
value of reward $j$, estimated from the batch after the step.

The account says what changed a reward. It does not say what would be lost without a reward: only a
training run without it shows this.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gdpo._shapes import Float
from gdpo.diagnostics.influence import Square, Vector

_ROUNDING = 1e-9
"""Difference that counts as none, as for a constant reward, which has no errors."""

WINDOW = 10
"""Number of optimizer steps in the window of a training run."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Stores what changed each reward over a window, in the unit of the changed reward.

    Errors are standard errors over groups. A reward that is missing in a rollout counts as 0 there,
    in the parts and in the measured change.
    """

    names: tuple[str, ...]
    parts: Square
    """`[j, k]`: how much reward k has changed the mean of reward j."""
    errors: Square
    """Standard errors of `parts`."""
    totals: Vector
    """How much all steps have changed the mean of each reward: its parts and the rest."""
    total_errors: Vector
    measured: Vector
    """Change of each mean reward, computed from the first and the last rewards of the window."""
    measured_errors: Vector

    @staticmethod
    def of(
        products: Sequence[Float[np.ndarray, "reward group direction"]],
        rewards: Sequence[Float[np.ndarray, "group sample reward"]],
        names: Sequence[str],
    ) -> "Account":
        r"""Return the account of a window.

        The measured change is the mean reward of the last quarter of the batches minus that of the
        first quarter, times the number of steps in the window, divided by the number of steps
        between the centers of the quarters.

        Args:
            products: For each step, $\langle a_{j,g}, U_k \rangle$, in the unit of reward j, with
                the gradient of reward j in each group g of the next batch. $U$ is the last
                direction. At least two groups.
            rewards: Raw rewards of each batch, of which there is one more than steps. NaN: missing.
            names: One name per reward.
        """
        few, steps = max(1, len(rewards) // 4), len(products)
        sums, sum_errors = _summed(products)
        means = [np.nan_to_num(each).mean(1).T[..., None] for each in rewards]
        ends = [-each for each in means[:few]] + means[-few:]
        scale = steps / (len(rewards) - few) / few
        change, change_error = _summed([scale * each for each in ends])
        return Account(
            tuple(names),
            sums[:, :-1],
            sum_errors[:, :-1],
            sums[:, -1],
            sum_errors[:, -1],
            change[:, 0],
            change_error[:, 0],
        )

    @property
    def rests(self) -> Vector:
        """Return the part of each total that does not come from a reward during the window."""
        return self.totals - self.parts.sum(1)

    @property
    def agrees(self) -> Sequence[bool]:
        """Return for each reward whether its total agrees with the measured change.

        They agree if they differ by at most two standard errors of their difference.
        """
        margin = 2 * np.hypot(self.total_errors, self.measured_errors) + _ROUNDING
        return (abs(self.totals - self.measured) <= margin).tolist()

    def metrics(self) -> Iterator[tuple[str, float]]:
        """Yield names and values of the metrics. Parts and rest: only where the total agrees."""
        for j, moved in enumerate(self.names):
            yield f"account/{moved}/measured", float(self.measured[j])
            if self.agrees[j]:
                parts = zip(self.names, self.parts[j], strict=True)
                yield from ((f"account/{moved}/by/{cause}", float(part)) for cause, part in parts)
                yield f"account/{moved}/rest", float(self.rests[j])

    def sentences(self) -> Iterator[str]:
        """Yield what changed each reward. ± is two standard errors."""
        for j, moved in enumerate(self.names):
            total = _number(self.totals[j], self.total_errors[j])
            measured = _number(self.measured[j], self.measured_errors[j])
            parts = zip(self.names, map(_number, self.parts[j], self.errors[j]), strict=True)
            listed = ", ".join(f"{cause} {part}" for cause, part in parts)
            if self.agrees[j]:
                rest = f"rest {self.rests[j]:+.2g}"
                yield f"{moved} {total} (measured {measured}), of which {listed}, {rest}"
            else:
                yield f"{moved} {measured}, but the account adds up to {total}, so it has no parts"


_Sums = Float[np.ndarray, "reward part"]


def _summed(terms: Sequence[Float[np.ndarray, "reward group part"]]) -> tuple[_Sums, _Sums]:
    """Return the sum of the means over groups, and its standard error."""
    values = np.sum([each.mean(1) for each in terms], axis=0)
    variances = [each.var(1, ddof=1) / each.shape[1] for each in terms]
    return values, np.sqrt(np.sum(variances, axis=0))


def _number(value: float, error: float) -> str:
    return f"{value:+.2g} ± {2 * error:.1g}"
