"""ms-swift: rewards of ours for `--reward_funcs`, and estimators for `--scale_rewards gdpo`.

Both are called from a file of the user's that `--external_plugins` names.
"""

from gdpo.integrations.ms_swift._estimator import register_rewards, use_estimator

__all__ = ["register_rewards", "use_estimator"]
