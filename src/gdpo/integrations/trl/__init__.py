"""Connects gdpo to TRL.

`GDPOTrainer` and `GDPOConfig` are drop-in replacements for `GRPOTrainer` and `GRPOConfig`.
`record_rollouts` adds gdpo's rollout record to TRL's own trainer.
"""

from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._recording import record_rollouts
from gdpo.integrations.trl._rewards import completion_text
from gdpo.integrations.trl._trainer import GDPOTrainer

__all__ = ["GDPOConfig", "GDPOTrainer", "completion_text", "record_rollouts"]
