"""TRL: `GDPOTrainer` and `GDPOConfig`, drop-ins for `GRPOTrainer` and `GRPOConfig`."""

from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._rewards import completion_text
from gdpo.integrations.trl._trainer import GDPOTrainer

__all__ = ["GDPOConfig", "GDPOTrainer", "completion_text"]
