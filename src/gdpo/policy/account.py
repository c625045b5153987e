r"""Computes the products of gradients and steps that an `Account` adds up.

With the moments $m_t$ and $v_t$ of the ascent gradient, both corrected for bias, AdamW adds
$\eta\, m_t / (\sqrt{v_t} + \epsilon)$ to the parameters, besides the weight decay. This is linear
in $m_t$. Reward $k$'s part of the step follows from what it has put into $m_t$ since the start of
the window, with the $v_t$ of the training run. The parts add up.

Each step is multiplied only by the gradients of the next batch, on which it does not depend. A
batch that has contributed to the step would multiply its noise by itself.
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


class AccountWindow:
    """Collects the products of the steps of a window, each with the batch after it.

    The rest of the account is the momentum from before the window, weight decay, and what the
    gradient contains besides the parts of the rewards: a KL term, advantages whose parts do not add
    up (`Coefficients`), or the effect of a loss that divides each rollout by its own length.

    Memory: one gradient in float32 per reward, and as much again while a batch is added.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        """Begin before the step of the first batch.

        Args:
            model: The policy, whose parameters the optimizer trains.
            optimizer: AdamW of torch without amsgrad, or accelerate's wrapper of it.

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
        """Return the number of steps whose next batch has been added."""
        return len(self._products)

    def add(
        self,
        passes: Iterable[RolloutPass],
        rewards: Float[np.ndarray, "prompt sample reward"],
        weights: Float[np.ndarray, "*prompt reward"],
        advantages: Float[np.ndarray, "prompt sample"],
    ) -> None:
        """Add a batch: multiply the last step by its gradients, and keep what each reward adds.

        Call this after the gradients of the batch have been clipped, and before the optimizer's
        step.

        Args:
            passes: A pass for each micro-batch, with the policy that generated the batch.
            rewards: Raw rewards. NaN: missing.
            weights: One weight per reward, or `[prompt, reward]`.
            advantages: The advantages with which the policy is trained.
        """
        made = Coefficients.of(rewards, weights, lambda *_: advantages)
        along, sums, left = [], dict[str, Tensor](), made.parts
        for each in passes:
            here, left = np.split(left, [each.rollouts], 1)
            if self._momenta:
                along.append(each.along(self))
            for name, found in each.weighted(here):
                sums[name] = sums.get(name, 0) + found
        if along:
            terms = made.gradient[..., None] * torch.cat(along).double().cpu().numpy()
            self._products.append(terms.reshape(len(terms), *advantages.shape, -1).mean(2))
        self._rewards.append(rewards)
        self._keep(sums)

    def _keep(self, sums: dict[str, Tensor]) -> None:
        """Add the parts to the momenta, with their sum scaled to fit the clipped gradient best."""
        products = squares = 0.0
        for name, parts in sums.items():
            whole = parts.sum(0)
            products -= float((whole * self._parameters[name].grad).sum())
            squares += float((whole**2).sum())
        groups = {each: group for group in self._optimizer.param_groups for each in group["params"]}
        for name in list(sums):
            # Copy the group, because the scheduler changes it before the next batch.
            group = self._groups[name] = dict(groups[self._parameters[name]])
            b1, added = group["betas"][0], sums.pop(name) * (products / (squares or 1.0))
            self._momenta[name] = b1 * self._momenta.get(name, 0) + (1 - b1) * added

    def __getitem__(self, name: str) -> Tensor:
        """Return how the last step moved a parameter: each reward's part, then the whole step."""
        parameter, group = self._parameters[name], self._groups[name]
        state, kept = self._optimizer.state[parameter], 1 - group["lr"] * group["weight_decay"]
        first, second = (1 - b ** float(state["step"]) for b in group["betas"])
        by = group["lr"] / first / ((state["exp_avg_sq"] / second).sqrt() + group["eps"])
        moved = -by * state["exp_avg"]
        decay = (1 - 1 / kept) * (parameter.detach() - moved)
        return torch.cat((by * self._momenta[name], (moved + decay)[None]))

    def result(self, names: Sequence[str]) -> Account:
        """Return the account of the steps whose next batch has been added."""
        return Account.of(self._products, self._rewards, names)
