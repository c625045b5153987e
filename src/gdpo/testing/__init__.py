"""Checks of the contracts, for the built-in parts and for your own.

def test_my_reward_keeps_its_contract():
check_reward(my_reward)

def test_my_estimator_keeps_its_contract():
check_estimator(my_estimator, claims=Claims(unit="each"))
"""

from gdpo.testing._estimators import check_estimator
from gdpo.testing._rewards import check_reward, hostile_texts
from gdpo.testing._subject import Claims

__all__ = ["Claims", "check_estimator", "check_reward", "hostile_texts"]
