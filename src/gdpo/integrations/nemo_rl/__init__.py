"""NeMo-RL: every estimator of ours as `grpo.adv_estimator.name`, after `install()`.

And any reward, task or gate as its environment `gdpo`.
"""

from gdpo.integrations.nemo_rl._install import install

__all__ = ["install"]
