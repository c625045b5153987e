"""The battery catches estimators that break the contract: the rules that are shipped elsewhere."""

import numpy as np
import pytest
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.advantages import grpo_no_std, mo_grpo
from gdpo.errors import ConfigError, DataError
from gdpo.testing import Claims, check_estimator


def checked(rewards, weights):
    """The refusals alone, so that a test shows another mistake."""
    rewards, weights = np.asarray(rewards, dtype=float), np.asarray(weights, dtype=float)
    if 0 in rewards.shape or np.isinf(rewards).any():
        raise DataError("refused")
    if weights.shape != rewards.shape[2:] or not np.isfinite(weights).all():
        raise ConfigError("refused")
    return rewards, weights


def with_epsilon(rewards, weights):
    """Divide rounding noise by ε, as TRL does."""
    r, w = checked(rewards, weights)
    with np.errstate(all="ignore"):
        mean = np.nanmean(r, axis=1, keepdims=True)
        std = np.nanstd(r, axis=1, ddof=1, keepdims=True)
        total = np.nansum(w * (r - mean) / (std + 1e-4), axis=-1)
        a = (total - total.mean()) / (total.std(ddof=1) + 1e-4)
    return np.nan_to_num(a).astype(np.asarray(rewards).dtype)


def spreads_nan(rewards, weights):
    """Return NaN for the batch if one reward is missing, as verl and NeMo-RL do."""
    return gdpo(rewards, weights) * (np.nan if np.isnan(rewards).any() else 1)


def missing_is_zero(rewards, weights):
    """Count a missing reward as 0, as the published TRL fork does."""
    return gdpo(np.where(np.isnan(rewards), 0, rewards), weights)


def keeps_to_positions(rewards, weights):
    a = gdpo(rewards, weights)
    return a * np.arange(1, a.shape[1] + 1, dtype=a.dtype)


def counts_padding(rewards, weights):
    return gdpo(rewards, weights) * rewards.shape[1]


def counts_absent_rewards(rewards, weights):
    return gdpo(rewards, [w + 1e-3 for w in weights])


def looks_at_other_groups(rewards, weights):
    a = mo_grpo(rewards, weights)
    return a * (1 + np.abs(a).max(initial=0))


def changes_its_weights(rewards, weights):
    a = gdpo(rewards, weights)
    if isinstance(weights, np.ndarray):
        weights *= 2
    return a


def averages_the_weights(rewards, weights):
    if np.ndim(weights) > 1:
        weights = np.mean(weights, axis=(0, 1))
    return mo_grpo(rewards, weights)


def takes_everything(rewards, weights):
    return gdpo(np.where(np.isinf(rewards), 1, rewards), weights)


def refused(message, estimator, *, library="numpy", **options):
    with pytest.raises(AssertionError, match=message):
        check_estimator(estimator, libraries=(library,), **options)


@pytest.mark.parametrize(
    ("broken", "claims", "message"),
    [
        (with_epsilon, Claims(), "a batch without signal|rounding noise"),
        (spreads_nan, Claims(), "missing value"),
        (missing_is_zero, Claims(), "missing value|missing reward"),
        (keeps_to_positions, Claims(), "order of rollouts"),
        (counts_padding, Claims(), "padding"),
        (counts_absent_rewards, Claims(), "without a reward|weight 0"),
        (looks_at_other_groups, Claims(local=True), "another group"),
        (changes_its_weights, Claims(), "changes its arguments"),
        (averages_the_weights, Claims(prompt_weights=True), "separate rewards for each prompt"),
        (takes_everything, Claims(), "DataError for a reward of inf"),
        (gdpo, Claims(local=True), "another group"),
        (grpo_no_std, Claims(unit="each"), "rewards of size|rewards times"),
        (grpo_no_std, Claims(unit="all"), "rewards of size|rewards times"),
        (gdpo, Claims(unit="kept"), "rewards of size|rewards times"),
    ],
)
def test_a_broken_estimator_is_caught_and_the_message_names_the_part(broken, claims, message):
    refused(message, broken, claims=claims)


def test_an_oracle_that_disagrees_is_reported():
    refused("oracle", gdpo, oracle=lambda r, w: mo_grpo(np.array(r), w))


def test_an_estimator_that_supports_only_numpy_is_reported():
    def numpy_only(rewards, weights):
        return np.asarray(gdpo(rewards, weights))

    refused(r"torch: .*ndarray .*Tensor", numpy_only, library="torch")


def test_missing_values_next_to_signal_are_compared_on_each_library():
    def fills_in_torch(rewards, weights):
        if not isinstance(rewards, np.ndarray) and rewards.isnan().any():
            rewards = rewards.where(~rewards.isnan(), rewards.nanmean(dim=1, keepdim=True))
        return gdpo(rewards, weights)

    refused(r"torch: .*float32", fills_in_torch, library="torch")


@pytest.mark.slow
def test_without_hypothesis_the_batches_are_drawn_here(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "hypothesis", None)
    check_estimator(gdpo, claims=Claims("each"), libraries=("numpy",))
    refused("order of rollouts", keeps_to_positions)


def test_an_unknown_library_or_claim_is_refused():
    with config_error("'nunpy': did you mean 'numpy'"):
        check_estimator(gdpo, libraries=("nunpy",))
    with config_error("unit 'eahc'"):
        Claims("eahc")
