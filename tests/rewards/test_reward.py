import math

import numpy as np
import pytest

from gdpo.errors import ConfigError
from gdpo.rewards import Example, Reward


def one(completion, reference):
    return 1.0


def test_a_reward_cannot_be_changed():
    reward = Reward("length", one, 0, 1)
    with pytest.raises(AttributeError):
        reward.name = "other"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_that_cannot_be_a_metrics_name_is_refused(name):
    with pytest.raises(ConfigError, match="name may not be empty or hold a slash"):
        Reward(name, one, 0, 1)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (1, 0), (0, math.inf), (-math.inf, 0), (math.nan, 1), (0, math.nan)]
)
def test_a_range_that_is_empty_or_endless_is_refused(low, high):
    with pytest.raises(ConfigError, match="reward 'length': its range must be finite"):
        Reward("length", one, low, high)


EXAMPLE = Example("", {}, 1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 7}, "a reward's name must be text, got int 7"),
        ({"name": None}, "a reward's name must be text, got NoneType None"),
        ({"function": "one"}, "its function must be one, got str 'one'"),
        ({"low": "0"}, "low must be a number, got str '0'"),
        ({"high": None}, "high must be a number, got NoneType None"),
        ({"high": True}, "high must be a number, got bool True"),
        ({"deadline": "5"}, "its deadline must be a number of seconds above 0, got str '5'"),
        ({"deadline": 0}, "its deadline must be a number of seconds above 0, got int 0"),
        ({"examples": EXAMPLE}, r"a single Example; a comma makes it a tuple: \(Example\(...\),\)"),
        ({"examples": [EXAMPLE]}, "examples must be a tuple of Example.* got list"),
        ({"examples": (EXAMPLE, ("", {}, 1.0))}, r"examples\[1\] must be an Example.* got tuple"),
        (
            {"examples": (Example("", {}, 1.5),)},
            r"score of examples\[0\] .* \[0, 1\], .* float 1.5",
        ),
        ({"examples": (Example("", {}, "1"),)}, r"score of examples\[0\] .* got str '1'"),
    ],
)
def test_a_field_that_holds_something_else_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Reward(**{"name": "length", "function": one, "low": 0, "high": 1, **fields})


def test_numbers_of_numpy_are_numbers():
    bounds = np.float32(0), np.int64(1)
    assert Reward("length", one, *bounds, (EXAMPLE,), deadline=np.float64(5)).high == 1
