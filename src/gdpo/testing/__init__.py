"""Checks that your own reward or estimator satisfies its contract.

Each check is one line in a test, and raises an error otherwise:

    >>> from gdpo import Example, Reward, gdpo
    >>> my_reward = Reward(
    ...     "polite",
    ...     lambda completion, reference: float("please" in completion),
    ...     low=0,
    ...     high=1,
    ...     examples=(Example("Sit, please.", {}, 1.0), Example("Sit.", {}, 0.0)),
    ... )
    >>> def test_my_reward_keeps_its_contract():
    ...     check_reward(my_reward)
    >>> def test_my_estimator_keeps_its_contract():
    ...     check_estimator(gdpo, claims=Claims(unit="each"), examples=5, libraries=("numpy",))
    >>> test_my_reward_keeps_its_contract()
    >>> test_my_estimator_keeps_its_contract()
"""

from gdpo.testing._estimators import Claims, check_estimator
from gdpo.testing._rewards import check_reward, hostile_texts

__all__ = ["Claims", "check_estimator", "check_reward", "hostile_texts"]
