"""Weighted sums of the gradients of rollouts equal those of autograd, for every kind of layer."""

import pytest
import torch
from tests.policy.policies import MAKERS, TEMPERATURE, by_autograd, policy, rows

from gdpo.policy.gradients import RolloutPass

BY_AUTOGRAD = {"scaled": ["scale", "model.norm.weight"]}
UNUSED = {"scaled": {"unused"}}


def run(model, side="right"):
    return RolloutPass(model, *rows(side), temperature=TEMPERATURE)


def close(found, wanted, *, error=1e-5):
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert (found - wanted).abs().max() <= error * wanted.abs().max()


@pytest.fixture(params=MAKERS)
def name(request):
    if request.param == "lora":
        pytest.importorskip("peft")
    return request.param


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_weighted_sums_are_those_of_autograd_whatever_the_padding(name, side):
    model = policy(name)
    wanted = by_autograd(model)
    coefficients = torch.randn(3, 4)
    made = run(model, side)
    found = dict(made.weighted(coefficients.numpy()))
    assert len(found) == len(list(made.weighted(coefficients)))
    assert found.keys() == wanted.keys() - UNUSED.get(name, set())
    for each, sums in found.items():
        close(sums, torch.einsum("ci,i...->c...", coefficients.to(sums), wanted[each]))
    assert sorted(made.by_autograd) == sorted(BY_AUTOGRAD.get(name, []))
    assert made.rollouts == 4


def test_products_are_those_of_each_gradient_and_each_direction(name):
    model = policy(name)
    wanted = by_autograd(model)
    directions = {each: torch.randn(2, *grad.shape[1:]) for each, grad in wanted.items()}
    products = sum(
        grad.flatten(1) @ directions[each].to(grad).flatten(1).T for each, grad in wanted.items()
    )
    close(run(model).along(directions), products)
