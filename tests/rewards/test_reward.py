import math

import pytest

from gdpo.errors import ConfigError
from gdpo.rewards import Reward


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
