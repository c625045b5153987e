from gdpo.advantages._types import Advantages, Number, PerReward, PerRollout, Rewards, Weights
from gdpo.advantages.arrays import finish, fixed_scale, per_rollout, prepare, z_scores
from gdpo.advantages.stages import BATCH, divide, standardize, weighted_sum


def gdpo(
    rewards: Rewards,
    weights: Weights,
    *,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
    token_counts: PerRollout = None,
    scale: Number | None = None,
) -> Advantages:
    r"""Normalize each reward per group, and the weighted sum over the batch (GDPO).

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\sum_k w_k z_k\Bigr). $$

    Use it for rewards in different units. Batch normalization keeps the size of the advantages
    independent of the number of rewards. It fails for single groups (set `scale`), and amplifies
    what is left if two rewards nearly cancel. If a share $p$ of the groups varies, advantages are
    about $1/\sqrt p$ times as large. Noise is scaled up (set `noise_floor`), a rare reward has
    little influence, and two rewards that agree count twice.

    In verl, a group with one sample keeps its raw reward. NeMo-RL uses a leave-one-out baseline by
    default (`gdpo_leave_one_out`).

    Args:
        token_counts: Number of tokens in each response, `[prompt, sample]`, at least 0. The mean
            and standard deviation over the batch then weight each rollout by its token count, as in
            verl, and groups without signal get nonzero advantages. None: each rollout counts once.
        scale: Divisor of the weighted sum that replaces normalization over the batch (see
            `RunningScale`). At least 0 (0: all advantages are 0); excludes `token_counts`.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Eq. 4 to 7. The token weights
        follow verl 0.9.1, `verl/trainer/ppo/core_algos.py`.

    Examples:
        Earning both rewards counts twice as much as earning one, unlike with `grpo`.

        >>> import numpy as np
        >>> gdpo(np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]), [1, 1]).round(4)
        array([[-0.5477,  0.5477],
               [-1.0954,  1.0954]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(z_scores(r, noise_floor), w)
    if scale is not None:
        a = divide(total, fixed_scale(scale, total.values, token_counts=token_counts))
    else:
        given = token_counts is not None
        counts = per_rollout(token_counts, r.values, name="token_counts") if given else None
        a = standardize(total, over=BATCH, counts=counts)
    return finish(a, rewards, max_advantage=max_advantage)
