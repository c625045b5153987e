"""Shows in the logs of TRL's trainer which reward is ignored. This file needs only NumPy and TRL.

Copy the file next to a training script that must not depend on gdpo, and add two lines:

    from watch_one_file import watch

    watch(trainer)    # TRL's GRPOTrainer or RLOOTrainer, once, before trainer.train()

The training is not affected. The trainer then logs two numbers for each reward at each step:

- `rewards/NAME/influence_share`: how strongly the advantages follow the reward, as a share of all
  rewards, over the batches with the last 256 groups. Compare it with the reward's share of the
  weights: a reward whose share is close to 0 is ignored. A negative share means that the updates
  push the reward against its weight.
- `rewards/NAME/zero_variance_groups`: share of the batch's groups in which all samples have the
  same value, so that the reward gives no signal.

Both numbers are those of `gdpo.integrations.trl.watch`, which also logs warnings with their causes
and remedies, watches evaluations, and keeps the last groups when a run is resumed.
"""

import functools
import logging
from collections import deque

import numpy as np

GROUPS = 256
"""Number of groups over which the influence share is computed."""
NOISE = 4 * 8 * float(np.finfo(np.float32).eps)
"""Standard deviation, relative to the mean size of the values, up to which values are equal but
for rounding errors. TRL computes rewards in float32."""

logger = logging.getLogger(__name__)


class _Window:
    """Stores the influence of each reward in the batches with the last `GROUPS` groups."""

    def __init__(self):
        self._batches = deque()
        self._groups = 0

    def add(self, influence, groups):
        """Add the next batch, drop old batches, and return the sum over the rest."""
        self._batches.append((influence, groups))
        self._groups += groups
        while self._groups - self._batches[0][1] >= GROUPS:
            self._groups -= self._batches.popleft()[1]
        return np.sum([each for each, _ in self._batches], axis=0)


def standardized(rewards):
    """Return rewards `[group, sample, reward]` with mean 0 and std 1 in each group, and the std.

    A missing reward (NaN) counts in no statistic and becomes 0. The std `[group, reward]` is 0 if
    the reward does not vary in the group, and NaN if no sample of the group has the reward.
    """
    present = ~np.isnan(rewards)
    count = np.sum(present, axis=1, keepdims=True)
    values = np.where(present, rewards, 0.0)
    size = np.sum(np.abs(values), axis=1, keepdims=True) / np.maximum(count, 1)
    mean = np.sum(values, axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(present, values - mean, 0.0)
    std = np.sqrt(np.sum(centred**2, axis=1, keepdims=True) / np.maximum(count - 1, 1))
    std = np.where(std > NOISE * size, std, 0.0)
    z = centred / np.where(std > 0, std, np.inf)
    return z, np.where(count > 0, std, np.nan)[:, 0, :]


def influence_shares(influence, weights):
    """Return each reward's share of the influence of weighted rewards, or NaN without influence.

    `influence` is the sum of advantage times standardized reward over all samples.
    """
    total = np.sum(np.abs(influence), where=weights != 0)
    if total == 0:
        return np.full(len(influence), np.nan)
    return np.where(weights < 0, -1.0, 1.0) * influence / total


class _Watched:
    def __init__(self, trainer, prefix):
        self._trainer, self._prefix = trainer, prefix
        self._window, self._rewards, self._off = _Window(), [], False
        names = trainer.reward_func_names
        self._names = []
        for name in names:  # one that occurs again gets the next free number
            free, number = name, 2
            while free in self._names or (free != name and free in names):
                free, number = f"{name}_{number}", number + 1
            self._names.append(free)

    def rewards(self, calculate):
        @functools.wraps(calculate)
        def calculated(*args, **kwargs):
            rewards = calculate(*args, **kwargs)
            self._rewards.append(rewards.detach().double().cpu().numpy())
            return rewards

        return calculated

    def advantages(self, generate):
        @functools.wraps(generate)
        def generated(*args, **kwargs):
            self._rewards.clear()
            output = generate(*args, **kwargs)
            # Every process takes part in gathering.
            advantages = self._trainer.accelerator.gather(output["advantages"].detach())
            if self._trainer.model.training and not self._off:
                try:
                    self._log(advantages.double().cpu().numpy())
                except Exception:  # an error ends the watching, not the training
                    self._off = True
                    logger.exception("watch is switched off, and training continues")
            return output

        return generated

    def _log(self, advantages):
        (rewards,) = self._rewards
        if np.any(np.isinf(rewards)):
            return
        rewards = rewards.reshape(-1, self._trainer.num_generations, rewards.shape[-1])
        z, std = standardized(rewards)
        influence = np.sum(advantages.reshape(*z.shape[:2], 1) * z, axis=(0, 1))
        weights = self._trainer.reward_weights.double().cpu().numpy()
        shares = influence_shares(self._window.add(influence, len(z)), weights)
        for k, name in enumerate(self._names):
            known = std[:, k][~np.isnan(std[:, k])]
            zero = np.mean(known == 0) if len(known) else np.nan
            for number, value in (("influence_share", shares[k]), ("zero_variance_groups", zero)):
                if not np.isnan(value):
                    key = f"{self._prefix}/{name}/{number}"
                    self._trainer._metrics["train"][key].append(float(value))


def watch(trainer, *, prefix="rewards"):
    """Log the influence share and the zero-variance groups of each reward of TRL's trainer.

    Call this function once, before `trainer.train()`, in every process. `prefix` starts the names
    of the metrics.
    """
    watched = _Watched(trainer, prefix)
    # Only this trainer's methods are replaced, because others may use the same class.
    for name, wrap in (
        ("_calculate_rewards", watched.rewards),
        ("_generate_and_score_completions", watched.advantages),
    ):
        setattr(trainer, name, wrap(getattr(trainer, name)))
