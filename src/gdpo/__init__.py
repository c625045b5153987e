"""Trains a language model on several rewards at once, so that no reward is ignored.

Nothing in this module needs torch. The TRL trainer is `gdpo.integrations.trl.GDPOTrainer`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdpo._left import absent

if TYPE_CHECKING:
    from gdpo.advantages.estimators.gdpo import gdpo
    from gdpo.advantages.estimators.grpo import grpo
    from gdpo.advantages.estimators.grpo_no_std import grpo_no_std
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

_MODULES = {
    "gdpo.advantages": ("gdpo", "grpo", "grpo_no_std"),
    "gdpo.diagnostics": ("diagnose",),
    "gdpo.errors": ("ConfigError", "DataError", "GdpoError", "MissingExtraError", "RewardError"),
    "gdpo.rewards": ("Example", "Reward"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that the command line responds to Ctrl-C at once."""
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise absent(__name__, name)
