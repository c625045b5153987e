"""Products of the vectors of batches equal those of autograd and real optimizers."""

import copy

import numpy as np
import pytest
import torch
from tests.policy.policies import LENGTHS, TEMPERATURE, by_autograd, policy, rows

from gdpo.policy.effect import Batch, Vectors
from gdpo.policy.steps import OptimizerStep

REWARDS, BATCHES, MAX_NORM = 2, 2, 0.4


def batches():
    """Return the coefficients of each batch; all have the same rollouts."""
    random = np.random.default_rng(0)
    for _ in range(BATCHES):
        yield {
            "gradient": random.normal(size=(REWARDS, len(LENGTHS))),
            "presence": random.normal(size=(REWARDS, len(LENGTHS))) / 20,
            "advantages": random.normal(size=len(LENGTHS)) / 10,
        }


@pytest.fixture(scope="module")
def made():
    """Return a policy and its optimizer, which has a state."""
    model = policy("llama tied")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def passes(model, cut):
    """Yield the rollouts in micro-batches of `cut`."""
    return Batch(*rows("both"), np.empty(0)).passes(model, cut, TEMPERATURE)


def begun(made, batches, **settings):
    model, optimizer = made
    step = OptimizerStep.live(optimizer, model.named_parameters())
    return model, step, Vectors(model, rewards=REWARDS, batches=batches, **settings)


def found(made, *, cut=3, **settings):
    model, step, vectors = begun(made, BATCHES, **settings)
    for each in batches():
        vectors.add(passes(model, cut), **each, step=step, max_norm=MAX_NORM)
    return vectors, vectors.products()


def stepped(made, gradient):
    """Return what the real optimizer adds, clipped by torch."""
    model, optimizer = copy.deepcopy(made)
    before = torch.nn.utils.parameters_to_vector(model.parameters())
    torch.nn.utils.vector_to_parameters(before.clone(), model.parameters())
    start = 0
    for parameter in model.parameters():
        part = gradient[start : start + parameter.numel()]
        parameter.grad, start = -part.reshape(parameter.shape).clone(), start + parameter.numel()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()) - before, norm


@pytest.fixture(scope="module")
def wanted(made):
    model, _ = made
    each = by_autograd(model)
    flat = torch.cat([each[name].flatten(1) for name, _ in model.named_parameters()], dim=1)
    targets, steps, norms = [], [], []
    for batch in batches():
        mean = {key: torch.tensor(each) @ flat / len(LENGTHS) for key, each in batch.items()}
        whole, *others = (
            stepped(made, mean["advantages"] - without)
            for without in (0 * mean["advantages"], *mean["presence"])
        )
        targets.append(mean["gradient"])
        steps.append(torch.stack([*(whole[0] - other[0] for other in others), whole[0]]))
        norms += [float(whole[1]), *(float(other[1]) for other in others)]
    assert min(norms) < MAX_NORM < max(norms)
    return torch.einsum("fjs,bks->fjbk", torch.stack(targets), torch.stack(steps)).detach().numpy()


@pytest.mark.parametrize("cut", [1, 3])
def test_exact_products_are_those_of_brute_force(made, wanted, cut):
    vectors, products = found(made, cut=cut)
    assert vectors.exact
    assert products.shape == (BATCHES, REWARDS, BATCHES, REWARDS + 1)
    assert products.dtype == np.float64
    np.testing.assert_allclose(products, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_vectors_are_sketched_where_they_do_not_fit():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    needed = 8 * BATCHES * (2 * REWARDS + 1) * 6
    for memory, exact in ((needed, True), (needed - 1, False)):
        assert Vectors(model, rewards=REWARDS, batches=BATCHES, memory=memory).exact == exact


def test_sketched_products_are_close(made, wanted):
    vectors, products = found(made, memory=0, size=2**20)
    assert not vectors.exact
    assert np.abs(products - wanted).max() <= 0.02 * np.abs(wanted).max()


class Given:
    """A pass of one rollout whose gradient is known."""

    rollouts = 1

    def weighted(self, coefficients):
        for name, slope in (("weight", torch.full((3, 2), 2.0)), ("bias", torch.ones(3))):
            yield name, torch.as_tensor(coefficients).reshape(-1, *[1] * slope.ndim) * slope


def sketched(seed, size):
    step = OptimizerStep(lambda name, gradient: gradient)
    vectors = Vectors(torch.nn.Linear(2, 3), rewards=1, batches=1, memory=0, size=size, seed=seed)
    one = np.ones((1, 1))
    batch = {"gradient": one, "presence": one, "advantages": one[0]}
    vectors.add([Given()], **batch, step=step, max_norm=1e9)
    return vectors.products()[0, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sketched_products_are_right_in_the_mean_over_seeds(size):
    """Without signs, or with signs that depend on places, the mean would be too large."""
    products = np.array([sketched(seed, size) for seed in range(500)])
    exact, error = 6 * 2**2 + 3, products.std(axis=0, ddof=1) / len(products) ** 0.5
    assert (np.abs(products.mean(axis=0) - exact) <= 3 * error).all()
    assert (error * len(products) ** 0.5 <= 1.1 * exact * (2 / size) ** 0.5).all()
    assert np.array_equal(sketched(3, size), products[3])


def test_a_reward_that_changes_no_advantage_adds_nothing(made):
    model, step, vectors = begun(made, 1)
    batch = next(batches())
    batch["presence"][0] = 0
    vectors.add(passes(model, 2), **batch, step=step, max_norm=MAX_NORM)
    products = vectors.products()[0, :, 0]
    assert not products[:, 0].any()
    assert products[:, 1:].all()


def test_coefficients_of_other_rollouts_are_refused(made):
    model, step, vectors = begun(made, 1)
    few = [next(passes(model, 3))]
    with pytest.raises(AssertionError, match="the rollouts of the coefficients"):
        vectors.add(few, **next(batches()), step=step, max_norm=1.0)
