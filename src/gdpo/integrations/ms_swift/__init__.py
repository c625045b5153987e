"""Connects gdpo's rewards (`--reward_funcs`) and estimators (`--scale_rewards gdpo`) to ms-swift.

Call `register_rewards` and `use_estimator` in a file that is passed to `--external_plugins`.
"""

from gdpo.integrations.ms_swift._estimator import register_rewards, use_estimator

__all__ = ["register_rewards", "use_estimator"]
