"""Puts the checkout of `NEMO_RL_SOURCE`, our example and the batches on the path.

Import this before any module of NeMo-RL.

NeMo-RL is not on a package index under its own name, and requires Python 3.13. On an older Python,
its typed dictionaries come from typing_extensions, as pydantic requires. Nothing else is changed.
"""

import os
import sys
import typing
import warnings
from pathlib import Path

import typing_extensions

warnings.simplefilter("ignore")

SOURCE = Path(os.environ["NEMO_RL_SOURCE"])
sys.path.insert(0, str(SOURCE))
EXAMPLE = Path(__file__).parents[3] / "examples" / "nemo_rl"
sys.path += [str(EXAMPLE), str(Path(__file__).parents[1] / "others")]
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict

from batches import result_of  # noqa: E402, F401


def start():
    """Start Ray, whose actors import what this process can import, and print to stderr."""
    import ray

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    sys.stdout = sys.stderr  # NeMo-RL prints


def configured(**changes):
    """Return the configuration of NeMo-RL's GDPO example, with changed fields."""
    from nemo_rl.algorithms.grpo import MasterConfig
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()
    config = load_config(SOURCE / "examples" / "configs" / "gdpo_math_1B.yaml")
    config = OmegaConf.to_container(config, resolve=True)
    config["grpo"]["adv_estimator"].update(changes)
    return MasterConfig(**config)
