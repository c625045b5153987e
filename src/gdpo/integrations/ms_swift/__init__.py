"""Connects gdpo to ms-swift: rewards for `--reward_funcs`, estimators for `--scale_rewards gdpo`.

Call both functions in a file that `--external_plugins` names.
"""

from gdpo.integrations.ms_swift._estimator import register_rewards, use_estimator

__all__ = ["register_rewards", "use_estimator"]
