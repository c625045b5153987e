"""Connects gdpo to NeMo-RL.

After `install()`, `grpo.adv_estimator.name` accepts every gdpo estimator, and the `gdpo`
environment provides gdpo's rewards, tasks and gates.
"""

from gdpo.integrations.nemo_rl._install import install

__all__ = ["install"]
