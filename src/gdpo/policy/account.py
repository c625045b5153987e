r"""Computes the products from which the account of a window of training steps follows.

AdamW adds $\eta\, m_t / (\sqrt{v_t} + \epsilon)$ to the parameters, with the bias of both moments
corrected. This is linear in the first moment $m_t$. What reward $k$ put into it since the start of
the window, divided by the second moment of the training, is therefore its part of the step, and
the parts add up.

A step meets the gradients of the next batch only. They are new to it: no batch may meet what it put
into the momentum itself, because noise would then be multiplied by itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo._shapes import Float
from gdpo.diagnostics.account import Account
from gdpo.diagnostics.effect import Coefficients
from gdpo.errors import ConfigError
from gdpo.policy.gradients import RolloutPass


class Window:
    """Adds up the steps of a training, from one batch to the next.

    The rest is what the momentum had before, and what the gradient has besides the rewards' parts:
    a KL term, advantages that do not add up (`Coefficients`), a loss that divides each rollout by
    its own length.

    Memory: K gradients in float32, and K more while a batch is added.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        """Begin before the step of the first batch.

        Args:
            model: The policy.
            optimizer: AdamW of torch, also one that accelerate has wrapped.

        Raises:
            ConfigError: If it is another optimizer.
        """
        self._optimizer = own = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(own, torch.optim.AdamW) or own.defaults["amsgrad"]:
            raise ConfigError(
                f"the account needs torch's AdamW without amsgrad, not {type(own).__name__}: set "
                "optim='adamw_torch', or remove effect_every"
            )
        self._parameters = dict(model.named_parameters())
        self._momenta, self._groups = dict[str, Tensor](), dict[str, Any]()
        self._products, self._rewards = [], []

    @property
    def steps(self) -> int:
        """Return the number of steps that have met the next batch."""
        return len(self._products)

    def add(
        self,
        passes: Iterable[RolloutPass],
        rewards: Float[np.ndarray, "prompt sample reward"],
        weights: Float[np.ndarray, "*prompt reward"],
        advantages: Float[np.ndarray, "prompt sample"],
    ) -> None:
        """Add a batch: let the last step meet it, and keep what each reward puts into the next.

        Call it when the gradients of the batch are clipped, before the optimizer's step.

        Args:
            passes: A pass for each micro-batch, at the weights that generated the batch.
            rewards: Raw rewards. NaN: missing.
            weights: One weight per reward, or those of each prompt.
            advantages: Those that the training uses.
        """
        made = Coefficients.of(rewards, weights, lambda *_: advantages)
        met, sums, left = [], dict[str, Tensor](), made.parts
        for each in passes:
            here, left = np.split(left, [each.rollouts], 1)
            if self._momenta:
                met.append(each.along(self))
            for name, found in each.weighted(here):
                sums[name] = sums.get(name, 0) + found
        if met:
            terms = made.gradient[..., None] * torch.cat(met).double().cpu().numpy()
            self._products.append(terms.reshape(len(terms), *advantages.shape, -1).mean(2))
        self._rewards.append(rewards)
        self._keep(sums)

    def _keep(self, sums: dict[str, Tensor]) -> None:
        """Add the parts to the momenta, in the scale that fits the clipped gradient best."""
        products = squares = 0.0
        for name, parts in sums.items():
            whole = parts.sum(0)
            products -= float((whole * self._parameters[name].grad).sum())
            squares += float((whole**2).sum())
        groups = {each: group for group in self._optimizer.param_groups for each in group["params"]}
        for name in list(sums):
            # The scheduler changes the group before the next batch.
            group = self._groups[name] = dict(groups[self._parameters[name]])
            b1, added = group["betas"][0], sums.pop(name) * (products / (squares or 1.0))
            self._momenta[name] = b1 * self._momenta.get(name, 0) + (1 - b1) * added

    def __getitem__(self, name: str) -> Tensor:
        """Return how the last step moved a parameter: because of each reward, and altogether."""
        parameter, group = self._parameters[name], self._groups[name]
        state, kept = self._optimizer.state[parameter], 1 - group["lr"] * group["weight_decay"]
        first, second = (1 - b ** float(state["step"]) for b in group["betas"])
        by = group["lr"] / first / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
        moved = -by * state["exp_avg"]
        decay = (1 - 1 / kept) * (parameter.detach() - moved)
        return torch.cat((by * self._momenta[name], (moved + decay)[None]))

    def result(self, names: Sequence[str]) -> Account:
        """Return the account of the steps that have met the next batch."""
        return Account.of(self._products, self._rewards, names)
