"""A dump of two rewards and two steps that is worked out by hand, and a reward that is learned."""

import numpy as np

from gdpo.advantages import gdpo
from gdpo.rollouts import Rollout, rollout_file, write_rollouts

ROWS = [
    # step, prompt, wide, narrow, tokens
    (1, "a", 0.0, 0.0, 10),
    (1, "a", 10.0, 0.0, 20),
    (1, "b", 5.0, 0.0, 30),
    (1, "b", 5.0, 1.0, 10),
    (2, "a", 0.0, None, 10),
    (2, "a", 10.0, None, 20),
    (2, "b", 0.0, 0.0, 10),
    (2, "b", 10.0, 1.0, 30),
]

LEARNED = [0.5, 0.7, 0.9, *[1.0] * 7]
STUCK = [0.0] * 10
"""How often a reward is earned, step by step."""


def run_of(folder, rates, *, declared=None):
    """Steps of 16 groups of 4; `format` is earned at these rates, `noise` varies always."""
    rng = np.random.default_rng(0)
    for step, rate in enumerate(rates, start=1):
        values = np.stack([rng.random((16, 4)) < rate, rng.random((16, 4))], axis=-1)
        advantages = gdpo(values, np.ones(2))
        rollouts = [
            Rollout(
                run="x",
                step=step,
                group_id=group,
                sample_id=sample,
                prompt=str(group),
                completion="",
                rewards=dict(zip(("format", "noise"), values[group, sample], strict=True)),
                weights={"format": 1.0, "noise": 1.0},
                advantage=float(advantages[group, sample]),
                num_tokens=1,
                finish_reason="stop",
            )
            for group in range(16)
            for sample in range(4)
        ]
        write_rollouts(rollout_file(folder, step), rollouts, declared=declared)
    return folder
