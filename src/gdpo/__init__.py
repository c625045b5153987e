"""Train a language model on several rewards at once, so that none of them drowns.

The names here need no torch. The TRL trainer is `gdpo.integrations.trl.GDPOTrainer`.
"""

from gdpo.advantages import gdpo, grpo, grpo_no_std
from gdpo.diagnostics import diagnose
from gdpo.errors import ConfigError, DataError, GdpoError, MissingExtraError, RewardError
from gdpo.rewards import Example, Reward

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "Example",
    "GdpoError",
    "MissingExtraError",
    "Reward",
    "RewardError",
    "diagnose",
    "gdpo",
    "grpo",
    "grpo_no_std",
]
