"""Makes flat gradients of rollouts, and the steps of AdamW that they give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.effect._keep import Flat
from benchmarks.forks._measure import padded

from gdpo.policy.gradients import RolloutPass


@dataclass(frozen=True, slots=True)
class Gradients:
    """Makes weighted sums of the gradients of rollouts, as flat rows."""

    model: Any
    pad: int

    def of(self, prompts: Any, completions: Any, coefficients: Any) -> torch.Tensor:
        """Return the sums over rollouts of coefficient times gradient, `[c, parameter]`."""
        rows = list(zip(prompts, completions, strict=True))
        made = RolloutPass(self.model, *padded(rows, self.pad))
        numbers = torch.tensor(np.asarray(coefficients), dtype=torch.float32)
        found = dict(made.weighted(numbers))
        each = [found[name].reshape(len(numbers), -1) for name, _ in self.model.named_parameters()]
        return torch.cat(each, dim=1)


@dataclass(frozen=True, slots=True)
class Adam:
    """Computes the step of AdamW without decay from a state, for gradients of the objective."""

    first: Flat
    """First moment of the objective, which is minus that of the loss."""
    second: Flat
    steps: int
    group: Mapping[str, Any]
    longest: float
    """Norm to which a gradient is clipped."""

    def clip(self, gradient: Flat) -> float:
        """Return the factor by which a gradient is clipped."""
        return min(1.0, self.longest / (float(gradient.norm()) + 1e-6))

    def advanced(self, gradient: Flat) -> tuple["Adam", Flat]:
        """Return the state after a step, and the step."""
        b1, b2 = self.group["betas"]
        gradient = gradient * self.clip(gradient)
        first = b1 * self.first + (1 - b1) * gradient
        second = b2 * self.second + (1 - b2) * gradient * gradient
        after = Adam(first, second, self.steps + 1, self.group, self.longest)
        return after, first * scale(second, self.steps + 1, self.group)

    def step(self, gradient: Flat) -> Flat:
        """Return the step alone."""
        return self.advanced(gradient)[1]


def scale(second: Flat, step: int, group: Mapping[str, Any]) -> Flat:
    """Return what the first moment is multiplied by in a step, counted from 1."""
    b1, b2 = group["betas"]
    root = (second / (1 - b2**step)).sqrt() + group["eps"]
    return group["lr"] / (1 - b1**step) / root
