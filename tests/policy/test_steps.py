"""The changes are those of a real optimizer, which stays as it is."""

import copy

import pytest
import torch
from accelerate import Accelerator
from torch.testing import assert_close

from gdpo.policy.steps import OptimizerStep, clip_of

SHAPES = {"matrix": (3, 4), "vector": (5,), "number": ()}
REAL = [
    (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.7, 0.9), "eps": 1e-3, "amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.RMSprop, {"momentum": 0.5}),
]


class Unknown(torch.optim.AdamW):
    """Comes from elsewhere."""


class Policy(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        for name, shape in SHAPES.items():
            values = torch.randn(shape, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(values))


def trained(kind, options, steps, dtype=torch.float64):
    """Return a policy and its optimizer, whose learning rate has changed since."""
    torch.manual_seed(0)
    model = Policy(dtype)
    settings = [{"params": [model.matrix], "lr": 0.02}, {"params": [model.vector, model.number]}]
    optimizer = kind(settings, lr=0.01, **options)
    for _ in range(steps):
        set_gradients(model, gradients(1))
        optimizer.step()
    optimizer.param_groups[1]["lr"] = 0.003
    return model, optimizer


def gradients(count):
    return {name: torch.randn(count, *shape) for name, shape in SHAPES.items()}


def set_gradients(model, given, index=0, factor=1.0):
    for name, parameter in model.named_parameters():
        parameter.grad = -factor * given[name][index].to(parameter)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(("kind", "options"), REAL)
def test_the_change_is_that_of_a_real_step(kind, options, steps):
    model, optimizer = trained(kind, options, steps)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    step = OptimizerStep.live(Accelerator(cpu=True).prepare(optimizer), model.named_parameters())
    given, clip = gradients(2), torch.tensor([0.5, 1.0])
    changes = {name: step.of(name, given[name], clip) for name in given}
    assert step.not_exact is None
    assert_close((model.state_dict(), optimizer.state_dict()), kept, rtol=0, atol=0)
    for index in range(2):
        other, real = trained(kind, options, steps)
        set_gradients(other, given, index, float(clip[index]))
        before = copy.deepcopy(dict(other.named_parameters()))
        real.step()
        for name, parameter in other.named_parameters():
            wanted = parameter - before[name]
            assert_close(changes[name][index], wanted, rtol=1e-6, atol=1e-12)


def test_a_small_difference_of_gradients_is_not_lost_to_rounding():
    model, optimizer = trained(torch.optim.AdamW, {}, 3, torch.bfloat16)
    step = OptimizerStep.live(optimizer, model.named_parameters())
    gradient = torch.full((2, *SHAPES["matrix"]), 0.1)
    gradient[1] += 1e-5
    first, second = step.of("matrix", gradient, torch.ones(2))
    state = optimizer.state[model.matrix]
    slope, at = 0.02 * 0.1 / (1 - 0.9**4), state["exp_avg_sq"].double() * 0.999 + 0.001 * 0.01
    root = (at / (1 - 0.999**4)).sqrt()
    mean = state["exp_avg"].double() * 0.9 - 0.1 * 0.1
    wanted = 1e-5 * (slope / root + 0.02 / (1 - 0.9**4) * mean * 1e-4 / (1 - 0.999**4) / root**3)
    assert second.dtype == torch.float64
    assert_close(second - first, wanted, rtol=1e-2, atol=0)


def test_another_optimizer_gives_the_gradient_times_its_rate_and_says_so():
    model, optimizer = trained(Unknown, {}, 1)
    step = OptimizerStep.live(optimizer, model.named_parameters())
    given = gradients(2)
    assert_close(
        step.of("vector", given["vector"], torch.tensor([1.0, 0.5])),
        0.003 * given["vector"] * torch.tensor([[1.0], [0.5]]),
    )
    assert step.not_exact == ("Unknown's step is not known: it is the gradient times the rate")


def test_without_an_optimizer_a_factored_second_moment_divides():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 6.0], [0.0, 0.0]])  # rows x columns: its own factors
    vector = torch.tensor([4.0, 0.0])
    step = OptimizerStep.plain(
        {"matrix": matrix, "vector": vector, "other": matrix + torch.eye(3, 2)}
    )
    one = torch.ones(1)
    assert torch.equal(step.of("vector", torch.ones(1, 2), one), torch.tensor([[0.5, 0.0]]))
    wanted = torch.where(matrix > 0, matrix.rsqrt(), 0)[None]
    assert_close(step.of("matrix", torch.ones(1, 3, 2), one), wanted)
    other = matrix + torch.eye(3, 2)
    factored = torch.outer(other.mean(1), other.mean(0)) / other.mean()
    found = step.of("other", torch.ones(1, 3, 2), one)
    assert_close(found, torch.where(factored > 0, factored.rsqrt(), 0)[None])
    assert step.not_exact


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 3.0])
def test_clipping_is_that_of_torch(norm):
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), norm / 2)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    clip = clip_of(torch.tensor([norm]), 1.0)
    assert_close(clip * norm / 2, parameter.grad[:1], rtol=1e-7, atol=0)
    assert clip_of(torch.tensor([norm]), float("inf")) == 1
