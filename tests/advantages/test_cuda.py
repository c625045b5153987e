"""On a GPU, estimators compute where their rewards are."""

import warnings

import numpy as np
import pytest
import torch
from tests.advantages.claims import SUBJECTS, options_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def case(name):
    """Return the estimator, its options, and rewards of 256 prompts."""
    rewards = np.random.default_rng(0).integers(0, 3, (256, 8, 2)).astype("float32")
    return SUBJECTS[name][0], options_of(name, rewards), rewards


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_the_advantages_are_on_the_device_and_equal(name):
    estimator, options, rewards = case(name)
    there = estimator(torch.tensor(rewards, device="cuda"), [1.0, 2.0], **options)
    assert there.device.type == "cuda"
    here = estimator(torch.tensor(rewards), [1.0, 2.0], **options)
    np.testing.assert_allclose(there.cpu(), here, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_the_host_waits_only_for_checks(name):
    """Independently of the number of prompts."""
    estimator, options, rewards = case(name)
    on_device = torch.tensor(rewards, device="cuda")
    estimator(on_device, [1.0, 2.0], **options)  # loads kernels
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # warns that it is a prototype
        try:
            estimator(on_device, [1.0, 2.0], **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert sum("called a synchronizing" in str(each.message) for each in found) <= 12
