"""The parts of an optimizer's steps, and their products with the gradients of the next batch."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tests.policy.policies import TEMPERATURE, by_autograd, policy, rows

from gdpo.advantages import gdpo
from gdpo.diagnostics.effect import Coefficients
from gdpo.policy.account import AccountWindow
from gdpo.policy.gradients import RolloutPass

STEPS, BEFORE = 3, 2
WEIGHTS = np.array([1.0, 0.5])
SHAPE = (2, 2)
"""Prompts and samples: the four rollouts of `rows`."""


def batches():
    random = np.random.default_rng(0)
    for _ in range(BEFORE + STEPS + 1):
        rewards = random.normal(size=(*SHAPE, 2))
        yield rewards, gdpo(rewards, WEIGHTS)


def flat(tensors):
    return torch.cat([each.detach().reshape(-1) for each in tensors])


def trained(window_of, *, decay=0.1, extra=0.0):
    """Train by hand, let a window see it, and return what every step was made of.

    `extra` scales a part of the gradient that belongs to no reward.
    """
    model = policy("llama tied")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    window, facts = None, []
    for number, (rewards, advantages) in enumerate(batches()):
        each = by_autograd(model)
        scores = torch.cat([each[name].flatten(1) for name, _ in model.named_parameters()], dim=1)
        made = Coefficients.of(rewards, WEIGHTS, gdpo)
        parts = torch.tensor(made.parts) @ scores / 7  # the loss divides by something
        gradient = parts.sum(0) + extra * torch.ones_like(parts[0])
        clip = 0.3 / float(gradient.norm())
        start = 0
        for parameter in model.parameters():
            size = parameter.numel()
            parameter.grad = -clip * gradient[start : start + size].view_as(parameter)
            start += size
        if number == BEFORE:
            window = window_of(model, optimizer)
        if window is not None:
            ids, mask, scored = rows()
            passes = [
                RolloutPass(model, ids[cut], mask[cut], scored[cut], TEMPERATURE)
                for cut in (slice(3), slice(3, None))
            ]
            window.add(passes, rewards, WEIGHTS, advantages)
        before = flat(model.parameters())
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.7  # as a scheduler does
        states = [optimizer.state[each] for each in model.parameters()]
        facts.append(
            {
                "put": clip * parts,
                "moved": flat(model.parameters()) - before,
                "scale": rate
                / (1 - 0.9 ** (number + 1))
                / (flat([s["exp_avg_sq"] for s in states]) / (1 - 0.999 ** (number + 1)))
                .sqrt()
                .add(1e-8),
                "toward": torch.tensor(made.gradient)[..., None] * scores,
                "rewards": rewards,
            }
        )
    return window, facts


def expected(facts):
    """Return the products [step, reward, group, direction] of steps and later gradients."""
    momentum, found = 0.0, []
    for step in range(BEFORE, BEFORE + STEPS):
        momentum = 0.9 * momentum + 0.1 * facts[step]["put"]
        ways = torch.cat((momentum * facts[step]["scale"], facts[step]["moved"][None]))
        products = facts[step + 1]["toward"] @ ways.T  # [reward, rollout, direction]
        found.append(products.reshape(2, *SHAPE, 3).mean(2))
    return torch.stack(found).numpy()


@pytest.mark.parametrize("decay", [0, 0.1])
def test_steps_meet_the_next_batch_in_the_parts_that_the_rewards_put_in(decay):
    window, facts = trained(AccountWindow, decay=decay)
    assert window.steps == STEPS
    wanted = expected(facts)
    assert_allclose(np.stack(window._products), wanted, rtol=1e-4, atol=1e-9)
    found = window.result(["a", "b"])
    assert_allclose(found.parts, wanted[..., :2].mean(2).sum(0), rtol=1e-4)
    assert_allclose(found.totals, wanted[..., 2].mean(2).sum(0), rtol=1e-4)
    change = np.stack([fact["rewards"].mean((0, 1)) for fact in facts[BEFORE:]])
    assert_allclose(found.measured, change[-1] - change[0])


def test_a_gradient_that_no_reward_explains_goes_into_the_rest():
    window, facts = trained(AccountWindow, extra=0.05)
    assert np.isfinite(np.stack(window._products)).all()
    assert_allclose(
        np.stack(window._products)[..., 2], expected(facts)[..., 2], rtol=1e-4, atol=1e-9
    )


@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.Adam])
def test_another_optimizer_is_refused(other):
    model = policy("llama")
    with pytest.raises(
        ValueError, match=f"needs torch's AdamW without amsgrad, not {other.__name__}"
    ):
        AccountWindow(model, other(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="without amsgrad"):
        AccountWindow(model, torch.optim.AdamW(model.parameters(), amsgrad=True))
