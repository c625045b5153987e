r"""Computes the inner products from which the effect of each reward on each reward follows.

For each batch of rollouts, with $s_i$ the gradient of the log-probability of rollout $i$, there are

- $a_j$, the mean of $c_{ji} s_i$: the gradient of the expected value of reward $j$;
- $g$, the mean of $A_i s_i$: the gradient of the step;
- $d_k$, the mean of $D_{ki} s_i$: what reward $k$ adds to it;
- $U_k = \mathrm{Step}(g) - \mathrm{Step}(g - d_k)$: what reward $k$ adds to the step;
- $U = \mathrm{Step}(g)$: the step. Each gradient is clipped by its own norm.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from gdpo.policy.gradients import RolloutPass
from gdpo.policy.steps import OptimizerStep, clip_of


class Vectors:
    r"""Collects the vectors of batches and returns their products.

    The vectors are kept as they are if those of all batches fit in `memory`. Otherwise each is kept
    as a count sketch: every entry is added, with a random sign, to one of `size` numbers. Over
    seeds, the mean of a product of sketches is the product, and its standard deviation is at most
    about $\sqrt 2 |a| |U| / \sqrt{\mathtt{size}}$.

    Memory: the kept vectors and, while a batch is added, K + 1 gradients in float32, 2 K + 1 sums
    of the parameter in work, and a `RolloutPass`. What is kept lies on the CPU.

    Attributes:
        exact: Whether the vectors are kept as they are.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        rewards: int,
        batches: int,
        memory: float = 2**30,
        size: int = 4096,
        seed: int = 0,
    ) -> None:
        """Choose how the vectors are kept.

        Args:
            model: The policy. Its parameters with `requires_grad` make up a vector.
            rewards: Number of rewards, K.
            batches: Number of batches that will be added.
            memory: Bytes that the vectors of all batches may take.
            size: Numbers in a sketch.
            seed: Seed of the sketches.
        """
        trained = {name: own.numel() for name, own in model.named_parameters() if own.requires_grad}
        self.exact = 4 * batches * (2 * rewards + 1) * sum(trained.values()) <= memory
        self._sizes = trained if self.exact else {"": size}
        self._seed = seed
        self._rows = []

    def add(
        self,
        passes: Iterable[RolloutPass],
        coefficients: tuple[Any, Any, Any],
        step: OptimizerStep,
        max_norm: float,
    ) -> None:
        """Add a batch of rollouts.

        Args:
            passes: A pass for each micro-batch. A generator lets only one exist at a time.
            coefficients: Arrays $c$ [reward, rollout], $D$ [reward, rollout] and $A$ [rollout], for
                the rollouts of all passes in their order. The size of $g$ is the trainer's if $D$
                and $A$ are divided by what its loss divides the tokens of a mean rollout by.
            step: The step of the optimizer.
            max_norm: The norm to which gradients are clipped.
        """
        gradient, presence, advantages = coefficients
        count = len(gradient)
        numbers = np.concatenate([gradient, advantages - presence, advantages[None]])
        numbers = numbers / len(advantages)
        row = {name: torch.zeros(2 * count + 1, size) for name, size in self._sizes.items()}
        sums = {}
        for each in passes:
            part, numbers = np.split(numbers, [each.rollouts], axis=1)
            for name, found in each.weighted(part):
                self._put(row, slice(count), name, found[:count])
                sums[name] = sums.get(name, 0) + found[count:]
        assert not numbers.size, "the passes have the rollouts of the coefficients"
        squares: Any = sum(each.flatten(1).square().sum(1) for each in sums.values())
        clip = clip_of(squares.sqrt(), max_norm)
        while sums:
            name, found = sums.popitem()
            change = step.of(name, found, clip)
            change[:-1] = change[-1] - change[:-1]
            self._put(row, slice(count, None), name, change)
        self._rows.append(row)

    def products(self) -> np.ndarray:
        """Return the products of $a_j$ of batch f with $U_1$ to $U_K$ and $U$ of batch b.

        Memory: the part of all vectors that belongs to one parameter, in float64.

        Returns:
            Float64 array [batch f, reward j, batch b, K + 1].
        """
        total: Any = 0
        for name in self._sizes:
            rows = torch.stack([row[name] for row in self._rows]).double()
            vectors, steps = rows.tensor_split([rows.shape[1] // 2], 1)
            total += torch.einsum("fjs,bks->fjbk", vectors, steps)
        return total.numpy()

    def _put(self, row: Any, at: slice, name: str, values: torch.Tensor) -> None:
        """Add a parameter's part of some vectors to a row."""
        values = values.flatten(1).float().cpu()
        if self.exact:
            row[name][at] += values
        else:
            source = torch.Generator().manual_seed(hash((self._seed, *name.encode())))
            places = torch.randint(2 * self._sizes[""], values.shape[1:], generator=source)
            row[""][at].index_add_(1, places // 2, values * (places % 2 * 2 - 1))
