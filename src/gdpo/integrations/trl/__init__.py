"""TRL: `GDPOTrainer` and `GDPOConfig`, drop-ins for `GRPOTrainer` and `GRPOConfig`.

And the rollout record of a trainer that stays TRL's own: `record_rollouts`.
"""

from gdpo.integrations.trl._config import GDPOConfig
from gdpo.integrations.trl._recording import record_rollouts
from gdpo.integrations.trl._rewards import completion_text
from gdpo.integrations.trl._trainer import GDPOTrainer

__all__ = ["GDPOConfig", "GDPOTrainer", "completion_text", "record_rollouts"]
