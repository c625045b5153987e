"""NeMo-RL: every estimator of ours as `grpo.adv_estimator.name`, after `install()`.

And any reward, task or gate as its environment `gdpo`.
"""

from gdpo.integrations._rows import NAME, PREFIX, estimator_names
from gdpo.integrations.nemo_rl._install import install
from gdpo.integrations.nemo_rl._settings import ENVIRONMENT

__all__ = ["ENVIRONMENT", "NAME", "PREFIX", "estimator_names", "install"]
