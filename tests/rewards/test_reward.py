import math

import numpy as np
import pytest
from tests.refusals import config_error

from gdpo.rewards import Example, Reward


def one(completion, reference):
    return 1.0


def test_a_reward_cannot_be_changed():
    reward = Reward("length", one, 0, 1)
    with pytest.raises(AttributeError):
        reward.name = "other"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_cannot_be_a_metrics_name_is_refused(name):
    with config_error(r"name .*'/'"):
        Reward(name, one, 0, 1)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (1, 0), (0, math.inf), (-math.inf, 0), (math.nan, 1), (0, math.nan)]
)
def test_a_range_that_is_empty_or_endless_is_refused(low, high):
    with config_error(r"reward 'length': .*range"):
        Reward("length", one, low, high)


EXAMPLE = Example("", {}, 1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 7}, "name .*got int 7"),
        ({"name": None}, "name .*got nothing"),
        ({"function": "one"}, "function .*got str 'one'"),
        ({"low": "0"}, "low .*got str '0'"),
        ({"high": None}, "high .*got nothing"),
        ({"high": True}, "high .*got bool True"),
        ({"deadline": "5"}, "deadline .*got str '5'"),
        ({"deadline": 0}, "deadline .*got int 0"),
        ({"examples": EXAMPLE}, r"tuple: \(Example\(...\),\)"),
        ({"examples": [EXAMPLE]}, "examples .*got list"),
        ({"examples": (EXAMPLE, ("", {}, 1.0))}, r"examples\[1\] .*got tuple"),
        ({"examples": (Example("", {}, 1.5),)}, r"examples\[0\] .* \[0, 1\], .* float 1.5"),
        ({"examples": (Example("", {}, "1"),)}, r"examples\[0\] .*got str '1'"),
    ],
)
def test_a_field_that_holds_something_else_is_refused(fields, message):
    with config_error(message):
        Reward(**{"name": "length", "function": one, "low": 0, "high": 1, **fields})


def test_numbers_of_numpy_are_numbers():
    bounds = np.float32(0), np.int64(1)
    assert Reward("length", one, *bounds, (EXAMPLE,), deadline=np.float64(5)).high == 1
