"""A recorded run with turns, whose first reward is paid per turn."""

from functools import partial

import numpy as np
from tests.rollouts.built import rollout

from gdpo.advantages import turn_gdpo
from gdpo.rollouts import Turn, rollout_file, write_rollouts

NAMES = ["format", "correct"]
LONGEST, SAMPLES = 6, 8


def per_turn(random, groups, *, pays, rate=1.0, logit=-0.4):
    """The number of turns of each rollout, and rewards `[prompt, sample, turn, reward]`.

    The first reward is paid at each turn with this rate, the second for the outcome, at the end.
    """
    counts = np.minimum(random.geometric(1 / (1 + np.exp(0.4)), (groups, SAMPLES)), LONGEST)
    right = (random.logistic(size=counts.shape) < logit).astype(float)
    at_the_end = np.where(np.arange(LONGEST) == counts[..., None] - 1, right[..., None], 0.0)
    paid = pays * (random.random((*counts.shape, LONGEST)) < rate)
    return counts, np.stack([paid, at_the_end], axis=-1)


PAID = partial(per_turn, pays=0.5)


def arrays(step, *, scenario=PAID, groups=16):
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
