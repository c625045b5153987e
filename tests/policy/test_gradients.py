"""Weighted sums of the gradients of rollouts equal those of autograd, for every kind of layer."""

import gc
from weakref import ref

import pytest
import torch
from tests.policy.policies import (
    BY_AUTOGRAD,
    MAKERS,
    TEMPERATURE,
    by_autograd,
    policy,
    rows,
)

from gdpo.policy.gradients import RolloutPass


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
    assert found.keys() == wanted.keys() - {"unused", "noisy.unused"}
    for each, sums in found.items():
        close(sums, torch.einsum("ci,i...->c...", coefficients.to(sums), wanted[each]))
    assert set(made.by_autograd) == BY_AUTOGRAD.get(name, set())
    assert made.rollouts == 4


def test_products_are_those_of_each_gradient_and_each_direction(name):
    model = policy(name)
    wanted = by_autograd(model)
    directions = {each: torch.randn(2, *grad.shape[1:]) for each, grad in wanted.items()}
    products = sum(
        grad.flatten(1) @ directions[each].to(grad).flatten(1).T for each, grad in wanted.items()
    )
    close(run(model).along(directions), products)


def state_of(model):
    """Return all that a pass may change; a parameter by its identity, value and gradient."""
    modules = [
        (module.training, dict(module._forward_hooks), dict(module._forward_pre_hooks))
        for module in model.modules()
    ]
    parameters = [
        (name, id(p), p.requires_grad, p.tolist(), p.grad.tolist(), len(p._backward_hooks or ()))
        for name, p in model.named_parameters()
    ]
    return modules, parameters


def test_the_model_is_afterwards_as_before():
    model = policy("odd")
    model.model.layers[0].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    before = state_of(model)
    with torch.no_grad():  # a caller that trains may have switched gradients off
        made = run(model)
        found = dict(made.weighted([[1.0, 2.0, 3.0, 4.0]]))
        made.along(found)
        next(made.weighted([[1.0, 2.0, 3.0, 4.0]]))
    assert "model.layers.1.mlp.up_proj.weight" not in found
    assert not any(each.requires_grad for each in found.values())
    assert state_of(model) == before
    assert not torch.nn.modules.module._global_forward_hooks


def test_the_model_is_as_before_if_the_pass_fails():
    model = policy("llama")
    model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model)
    assert all(module.training for module in model.modules())
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.parametrize(("name", "error"), [("llama tied", 1e-5), ("odd", 0.03)])
def test_sums_of_a_model_in_bfloat16_are_in_float32(name, error):
    made = run(policy(name, torch.bfloat16))
    found = dict(made.weighted(torch.eye(4)))
    directions = {each: torch.randn_like(sums[:1]) for each, sums in found.items()}
    weights = torch.tensor([[0.1, 0.7, 0.3, -1.3]])
    for each, sums in made.weighted(weights):
        assert sums.dtype == torch.float32
        close(sums, torch.einsum("ci,i...->c...", weights, found[each]), error=error)
    products = sum((found[each] * way).flatten(1).sum(1) for each, way in directions.items())
    close(made.along(directions)[:, 0], products, error=error)
    wanted = by_autograd(policy(name, torch.float32))
    for each, sums in found.items():
        assert torch.cosine_similarity(sums.flatten(), wanted[each].flatten(), dim=0) > 0.95


def test_logits_are_computed_from_the_first_scored_token_on(name):
    if name == "odd":
        pytest.skip("has no head")
    model, seen = policy(name), []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, arguments, out: seen.append(out.shape[1]))
    RolloutPass(model, *rows(lengths=[(3, 2), (4, 2)]))
    assert seen == [7 - 3 + 1]


def test_only_what_trained_modules_receive_is_kept():
    """In each order, the earlier modules are all frozen."""
    for trained in ("overwritten.weight", "model.layers.0.self_attn.q_proj.weight"):
        model, inputs = policy("odd"), []
        wanted = by_autograd(model)[trained]
        model.model.layers[1].mlp.up_proj.register_forward_hook(
            lambda module, arguments, out, inputs=inputs: inputs.append(ref(arguments[0]))
        )
        for each, parameter in model.named_parameters():
            parameter.requires_grad_(each == trained)
        made = run(model)
        close(dict(made.weighted(torch.eye(4)))[trained], wanted)
        assert not made.by_autograd
        assert inputs
        assert inputs[0]() is None


def test_rows_without_a_scored_token_have_no_gradient():
    ids, mask, scored = rows()
    made = RolloutPass(policy("llama"), ids, mask, scored & False)
    assert not any(sums.any() for _, sums in made.weighted(torch.ones(1, 4)))


@pytest.mark.parametrize("name", MAKERS)
def test_a_pass_frees_what_it_kept_at_once(name):
    made = run(policy(name))
    kept = [ref(slope) for calls in made._calls.values() for *_, slope in calls]
    assert kept
    gc.disable()
    try:
        del made
        assert [each() for each in kept] == [None] * len(kept)
    finally:
        gc.enable()
