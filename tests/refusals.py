"""The errors that a user's mistake raises, with what their sentences must say."""

import pytest

from gdpo.errors import ConfigError, DataError, MissingExtraError, RewardError


def config_error(match):
    return pytest.raises(ConfigError, match=match)


def data_error(match):
    return pytest.raises(DataError, match=match)


def reward_error(match):
    return pytest.raises(RewardError, match=match)


def missing_extra_error(match):
    return pytest.raises(MissingExtraError, match=match)


def refusal(call, *arguments, error=ConfigError):
    """Return the sentence of the error that a call raises."""
    with pytest.raises(error) as raised:
        call(*arguments)
    return str(raised.value)
