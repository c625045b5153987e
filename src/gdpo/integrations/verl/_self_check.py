"""Compares advantages that go through verl's own code with gdpo's, before training starts."""

import sys
from importlib.metadata import version
from typing import Any

import numpy as np

from gdpo.advantages import gdpo
from gdpo.errors import ConfigError
from gdpo.integrations.rows import NAME, PREFIX
from gdpo.integrations.verl._run import Run

TESTED = ("0.8.0", "0.9.1")
"""Versions of verl on which the conformance tests were run."""

_TRAINER, _KEYS, _WEIGHTS = "verl.trainer.ppo.ray_trainer", ("a", "b"), (1.0, 0.5)
_REWARDS = np.array([[[0, 3], [1, 2], [1, 0]], [[2, 0], [0, 0], [2, 1]]], dtype=np.float64)
_TOKENS = 3

_CLOSE = 1e-5
"""Largest allowed difference between verl's float32 and gdpo's float64."""


def check_itself(run: Run) -> None:
    """Raise a ConfigError unless gdpo's estimator works in this verl, on a made-up batch.

    A process that has not imported verl's trainers is not checked, because it does not train.
    """
    if run.is_checked or _TRAINER not in sys.modules:
        return
    expected = gdpo(_REWARDS, _WEIGHTS).reshape(-1)
    try:
        tokens = _through_verl(sys.modules[_TRAINER]).double().numpy()
        run.latest = None  # of the made-up batch, nothing is logged
        wrong = f"the advantages differ by {np.abs(tokens - expected[:, None]).max():.1e}"
        run.is_checked = np.allclose(tokens, expected[:, None], rtol=0, atol=_CLOSE)
    except Exception as error:  # noqa: BLE001  another verl may fail in any way
        wrong = f"{type(error).__name__}: {error}"
    if not run.is_checked:
        raise ConfigError(
            f"gdpo's estimators do not work in verl {version('verl')}: with a batch made up for "
            f"this check, {wrong}. Install a version on which gdpo was tested "
            f"({', '.join(TESTED)}), or use one of verl's own estimators"
        )


def _through_verl(ray_trainer: Any) -> Any:
    import torch

    rows = len(_REWARDS) * _REWARDS.shape[1]
    zeros, ones = torch.zeros(rows, _TOKENS), torch.ones(rows, _TOKENS).long()
    columns = dict(zip(_KEYS, _REWARDS.reshape(rows, -1).T, strict=True))
    data = ray_trainer.DataProto.from_dict(
        tensors={"token_level_rewards": zeros, "response_mask": ones},
        non_tensors={
            **{name: column.astype(object) for name, column in columns.items()},
            "uid": np.repeat(["p", "q"], rows // 2).astype(object),
        },
    )
    name = f"{PREFIX}{NAME}"
    algorithm = {
        "adv_estimator": name,
        "gdpo_reward_keys": list(_KEYS),
        "gdpo_reward_weights": list(_WEIGHTS),
    }
    done = ray_trainer.compute_advantage(data, adv_estimator=name, config=algorithm)
    return done.batch["advantages"]
