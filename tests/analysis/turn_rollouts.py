"""A recorded run with turns, whose first reward is paid per turn."""

import numpy as np
from tests.rollouts.built import rollout

from gdpo.advantages import turn_gdpo
from gdpo.rollouts import Turn, rollout_file, write_rollouts

NAMES, SAMPLES, LONGEST = ("format", "correct"), 8, 6


def paid_per_turn(random, groups):
    """Rollouts of one to six turns, with 0.5 at each turn, and an outcome of 0 or 1 at the end."""
    counts = np.minimum(random.geometric(0.4, (groups, SAMPLES)), LONGEST)
    last = np.arange(LONGEST) == counts[..., None] - 1
    correct = last * (random.random((groups, SAMPLES, 1)) < 0.4)
    return counts, np.stack([np.full(last.shape, 0.5), correct], axis=-1)


def arrays(step, *, scenario=paid_per_turn, groups=16):
    """The numbers of turns, rewards and advantages of a step."""
    counts, rewards = scenario(np.random.default_rng(step), groups)
    return counts, rewards, turn_gdpo(rewards, np.ones(rewards.shape[-1]), turns=counts)


def recorded(folder, *, steps=6, names=NAMES, change=lambda rollout: rollout, **options):
    """Write the steps as gdpo's record. `change` returns each rollout as it is to be recorded."""
    for step in range(1, steps + 1):
        counts, rewards, advantages = arrays(step, **options)
        rollouts = [
            _rollout(step, (p, s), rewards[p, s, : counts[p, s]], advantages[p, s], names)
            for p, s in np.ndindex(counts.shape)
        ]
        write_rollouts(rollout_file(folder, step), list(map(change, rollouts)))
    return folder


def _rollout(step, place, rewards, advantages, names):
    turns = tuple(
        Turn(dict(zip(names, each.tolist(), strict=True)), float(a), 10)
        for each, a in zip(rewards, advantages, strict=False)
    )
    return rollout(
        *(step, *place),
        dict(zip(names, rewards.sum(axis=0).tolist(), strict=True)),
        prompt=f"question {place[0]}",
        completion=[{"role": "assistant", "content": f"say {t}"} for t in range(len(turns))],
        advantage=float(np.mean([turn.advantage for turn in turns])),
        num_tokens=10 * len(turns),
        turns=turns,
    )
