"""Records the gradient of every update and the change of the parameters."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Step:
    """What a side computed in one or several steps."""

    gradients: list[Any] = field(default_factory=list)
    """Gradient of each update before clipping, as one vector."""
    advantages: list[Any] = field(default_factory=list)
    """Advantages of each batch, in the order of the rows and their rollouts."""
    parameters: Any = None
    """All parameters after the last update, as one vector."""
    more: dict[str, Any] = field(default_factory=dict)


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1).clone() for tensor in tensors])


@contextmanager
def recorded(step):
    """Record each gradient that torch is asked to clip: both sides clip before each update."""
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_record(parameters, *args, **kwargs):
        parameters = list(parameters)
        step.gradients.append(flat(p.grad for p in parameters if p.grad is not None))
        return clip(parameters, *args, **kwargs)

    torch.nn.utils.clip_grad_norm_ = clip_and_record
    try:
        yield step
    finally:
        torch.nn.utils.clip_grad_norm_ = clip


def sketch(vector, size=64):
    """Return a vector of `size` numbers with about the same angles and lengths.

    Each number adds up the coordinates of the vector with random signs.
    """
    frozen = np.random.RandomState(0)
    signs = torch.from_numpy(frozen.randint(0, 2, (size, len(vector))) * 2.0 - 1)
    return (signs @ vector.double() / size**0.5).tolist()
