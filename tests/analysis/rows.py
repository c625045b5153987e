"""A dump of two rewards and two steps that is worked out by hand, and a reward that is learned."""

import numpy as np
from tests.rollouts.built import rollout

from gdpo.advantages import gdpo
from gdpo.analysis.logs.sources import read_logs
from gdpo.analysis.logs.trends import logged_runs
from gdpo.rollouts import rollout_file, write_rollouts

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
            rollout(
                *(step, *place),
                dict(zip(("format", "noise"), values[place], strict=True)),
                prompt=str(place[0]),
                advantage=float(advantages[place]),
            )
            for place in np.ndindex(16, 4)
        ]
        write_rollouts(rollout_file(folder, step), rollouts, declared=declared)
    return folder


def runs_at(*paths):
    """The runs that logs tell of."""
    return logged_runs(read_logs(paths))
