r"""Computes what an optimizer would add to parameters, for several gradients at once.

Neither the parameters nor the optimizer's state are changed.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor


class OptimizerStep(NamedTuple):
    """What an optimizer would add to each parameter in its next step.

    Attributes:
        change_of: Takes a parameter's name and gradients [c, *parameter], and returns the changes
            of that shape.
        not_exact: Why this is not the step of a real optimizer. None: it is.
    """

    change_of: Callable[[str, Tensor], Tensor]
    not_exact: str | None = None

    @classmethod
    def live(cls, optimizer: Any, named_parameters: Any) -> "OptimizerStep":
        """Return the next step of an optimizer, from its settings and state at each call of `of`.

        An optimizer of torch takes its own step, with copies of a parameter and of its state. The
        copies are in float64, so that the difference of two small changes is exact. They are made
        for one parameter and one gradient at a time. The steps are thus those of any optimizer that
        treats each parameter by itself, without the rounding to the precision of the parameters.
        The code of other packages may not accept such copies: the change is then the gradient
        times the learning rate, and `not_exact` says so.

        Args:
            optimizer: An optimizer, also one that accelerate has wrapped.
            named_parameters: Names and parameters of the model.
        """
        optimizer = getattr(optimizer, "optimizer", optimizer)
        groups = {each: group for group in optimizer.param_groups for each in group["params"]}
        parameters = dict(named_parameters)

        def step(name: str, gradient: Tensor) -> Tensor:
            parameter = parameters[name]
            there = parameter.data.double().clone()
            there.grad = -gradient.double()
            trial = copy(optimizer)
            state = optimizer.state.get(parameter, {})
            trial.state = {there: {at: state[at].double().clone() for at in state}}
            # The fused code on GPUs expects a count of steps in float32.
            trial.param_groups = [{**groups[parameter], "params": [there], "fused": False}]
            trial.step()
            return there - parameter.data

        if type(optimizer).__module__.startswith("torch.optim."):
            return cls(step)
        return cls(
            lambda name, each: each * groups[parameters[name]]["lr"],
            f"{type(optimizer).__name__}'s step is not known: it is the gradient times the rate",
        )

    @classmethod
    def plain(cls, second_moments: dict[str, Tensor]) -> "OptimizerStep":
        r"""Return a step that needs no optimizer, and has no learning rate.

        The change is the gradient divided by the root of its second moment $v$. That of a matrix is
        replaced by $\bar v_{r \cdot} \bar v_{\cdot c} / \bar v$, as in Adafactor, which a few
        gradients are enough to estimate. The change is 0 where the second moment is.

        Args:
            second_moments: For each name, the mean square of the gradient, of the same shape.
        """

        def change_of(name: str, gradient: Tensor) -> Tensor:
            moment = second_moments[name]
            if moment.ndim == 2:
                moment = moment.mean(1, keepdim=True) * moment.mean(0) / moment.mean()
            return torch.where(moment > 0, gradient / moment.sqrt(), 0)

        return cls(change_of, "there is no optimizer: the gradient is divided by its usual size")

    def of(self, name: str, gradient: Tensor, clip: Tensor) -> Tensor:
        """Return the changes [c, *parameter] of a parameter.

        Args:
            name: The parameter's name.
            gradient: Gradients [c, *parameter] of the objective: minus those of the loss, which
                the optimizer would get.
            clip: The factor [c] by which each gradient is multiplied first.
        """
        pairs = zip(gradient, clip, strict=True)
        return torch.stack([self.change_of(name, each * factor) for each, factor in pairs])


def clip_of(norms: Tensor, max_norm: float) -> Tensor:
    """Return the factors by which torch's `clip_grad_norm_` multiplies gradients of these norms."""
    return (max_norm / (norms + 1e-6)).clamp(max=1)
