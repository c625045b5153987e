"""Every estimator, under one battery of contracts, on every array library that is installed."""

import pytest
from hypothesis import settings
from tests.advantages.claims import CLAIMS, SUBJECTS

from gdpo.advantages import ESTIMATORS
from gdpo.testing import check_estimator


def test_every_estimator_has_its_claims_written_down():
    assert set(CLAIMS) == set(ESTIMATORS)


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_it_keeps_the_contract(name):
    estimator, oracle, claims, options = SUBJECTS[name]
    examples = settings().max_examples
    check_estimator(estimator, options=options, oracle=oracle, claims=claims, examples=examples)
