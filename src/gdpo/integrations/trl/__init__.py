"""Connects gdpo to TRL.

`GDPOTrainer` and `GDPOConfig` are drop-in replacements for `GRPOTrainer` and `GRPOConfig`.
`watch` adds metrics, findings and the rollout record to TRL's own trainers.
"""

from gdpo._left import absent
from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._trainer import GDPOTrainer
from gdpo.integrations.trl._watching import watch
from gdpo.rewards.text import completion_text

__all__ = ["GDPOConfig", "GDPOTrainer", "completion_text", "watch"]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
