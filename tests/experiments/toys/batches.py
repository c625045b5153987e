"""Batches whose advantages are known in closed form, and what is measured on them. Nothing learns.

The number of different advantage groups, the other thing that is counted on paper, is in
`examples/paper_figures.py`.
"""

import math

import numpy as np
from jaxtyping import Float

from gdpo.advantages import mo_grpo
from gdpo.experiments.toys._toys import Array


def junk_batch(
    seed: int, *, rate: float = 0.5, prompts: int = 4000, samples: int = 8
) -> Float[Array, "prompt sample reward"]:
    r"""A reward of 0 and 1, and a constant with 0.1 % of jitter.

    With $\pi = 1 - p^G - (1 - p)^G$ the share of groups in which the first one varies, and weights
    of 1, the correlations of A with the normalized rewards are $\sqrt{\pi / (1 + \pi)}$ and
    $1 / \sqrt{1 + \pi}$ for GDPO. For GRPO they are $\sqrt\pi$ and $1 - \pi$, as the jitter shows
    only where the first reward does not vary.
    """
    rng = np.random.default_rng(seed)
    correct = rng.random((prompts, samples)) < rate
    return np.stack([correct, 0.5 + 0.001 * rng.random((prompts, samples))], axis=2)


def thinning_batch(
    active: float, *, prompts: int = 1000, samples: int = 8
) -> Float[Array, "prompt sample reward"]:
    r"""One reward that half of the samples earn in a share of the groups, and all in the others.

    Without its batch step, an advantage has the size $\sqrt{(G - 1) / G}$ in a group that varies,
    however few there are. GDPO's batch step divides by the size over the whole batch: where a share
    $a$ varies, the advantages there are larger by $1 / \sqrt a$, to about one part in the number of
    rollouts.
    """
    rewards = np.ones((prompts, samples, 1))
    rewards[: round(active * prompts), ::2] = 0.0
    return rewards


def correlated_batch(
    correlation: float, seed: int, *, prompts: int = 500, samples: int = 64
) -> Float[Array, "prompt sample reward"]:
    r"""Two normal rewards with this correlation, and a third one that is independent.

    With weights of 1 the influence on $\sum_k w_k z_k$ is $C w$: $1 + \rho$, $1 + \rho$ and 1. With
    the weights $C^{-\alpha} w$ it is $C^{1 - \alpha} w$: $(1 + \rho)^{1 - \alpha}$ twice, and 1.
    """
    rng = np.random.default_rng(seed)
    one, other, third = rng.normal(size=(3, prompts, samples))
    alike = correlation * one + math.sqrt(1 - correlation**2) * other
    return np.stack([one, alike, third], axis=2)


def influence(
    advantages: Float[Array, "prompt sample"], rewards: Float[Array, "prompt sample reward"]
) -> Float[Array, " reward"]:
    r"""$\mathrm{Cov}(A, z_k)$ over the batch, $z_k$ being the reward normalized in its group."""
    z = _normalized(rewards)
    rollouts = advantages.size - len(advantages)  # a group has one degree of freedom less
    return np.einsum("pg,pgk->k", advantages, z) / rollouts


def correlation_with(
    advantages: Float[Array, "prompt sample"], rewards: Float[Array, "prompt sample reward"]
) -> Float[Array, " reward"]:
    """Correlation of the advantages with each reward normalized in its group, over the batch."""
    z = _normalized(rewards)
    size = np.sqrt((advantages**2).sum() * (z**2).sum(axis=(0, 1)))
    return np.einsum("pg,pgk->k", advantages, z) / size


def live_size(
    advantages: Float[Array, "prompt sample"], rewards: Float[Array, "prompt sample reward"]
) -> float:
    """Root mean square of the advantages in the groups where a reward varies."""
    live = (rewards != rewards[:, :1]).any(axis=(1, 2))
    return float(np.sqrt((advantages[live] ** 2).mean()))


def _normalized(rewards: Float[Array, "prompt sample reward"]) -> Float[Array, "..."]:
    return np.stack([mo_grpo(rewards[..., [k]], [1]) for k in range(rewards.shape[2])], axis=2)
