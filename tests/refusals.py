"""The errors that a user's mistake raises, with what their sentences must say."""

import pytest

from gdpo.errors import ConfigError, DataError, RewardError


def config_error(match):
    return pytest.raises(ConfigError, match=match)


def data_error(match):
    return pytest.raises(DataError, match=match)


def reward_error(match):
    return pytest.raises(RewardError, match=match)
