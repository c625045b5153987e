"""Connects gdpo to NeMo-RL.

After `install()`, every estimator of gdpo is a value of `grpo.adv_estimator.name`, and the
environment `gdpo` provides gdpo's rewards, tasks and gates.
"""

from gdpo.integrations.nemo_rl._install import install

__all__ = ["install"]
