"""Every estimator keeps the contract, on every installed array library."""

import numpy as np
import pytest
from hypothesis import settings
from tests.advantages.claims import SUBJECTS, options_of

from gdpo.advantages import arrays
from gdpo.testing import check_estimator

ALL = pytest.mark.parametrize("name", sorted(SUBJECTS))


def check(name, *libraries, examples):
    estimator, oracle, claims, options = SUBJECTS[name]
    expected = {"options": options, "oracle": oracle, "claims": claims}
    check_estimator(estimator, **expected, examples=examples, libraries=libraries)


@ALL
def test_it_keeps_the_contract(name):
    check(name, "numpy", "torch", examples=settings().max_examples)


@pytest.mark.slow
@ALL
def test_it_keeps_the_contract_on_other_array_libraries(name):
    """Random batches are checked with NumPy, so one is enough here."""
    check(name, "array_api_strict", "jax", examples=1)


@ALL
def test_it_keeps_the_contract_where_torch_computes_itself(name, monkeypatch):
    """Computes in torch, as for tensors that are large or on a GPU."""
    monkeypatch.setattr(arrays, "_SMALL", 0)
    check(name, "torch", examples=1)


# Two rewards that cancel in the only live group: what is left of their sum is rounding.
CANCEL = np.array([[[0.0, 0.0], [0.125, -0.375]]])


@pytest.mark.parametrize("name", sorted(set(SUBJECTS) - {"constrained_grpo"}))
def test_what_the_soak_run_found(name):
    estimator, oracle, *_ = SUBJECTS[name]
    given = options_of(name, CANCEL)
    plain = {key: np.asarray(value).tolist() for key, value in given.items()}
    wanted = oracle(CANCEL.tolist(), [1.0, 1.0], **plain)
    np.testing.assert_allclose(estimator(CANCEL, [1.0, 1.0], **given), wanted, atol=1e-9)


def test_a_sample_at_the_mean_pulls_nowhere_in_whatever_unit():
    """Found by the soak run: after a shift, rounding gave it a sign, and so a conflict."""
    r = np.zeros((2, 6, 3))
    r[0, :, 0] = [-1, 0, 0, 0, 0, 1]
    r[0, 1, 1] = -1
    changed = r.copy()
    changed[..., 0] = 1e-3 * r[..., 0] + 1
    hard = SUBJECTS["gd2po_hard"][0]
    np.testing.assert_allclose(hard(changed, np.ones(3)), hard(r, np.ones(3)), atol=1e-5)
