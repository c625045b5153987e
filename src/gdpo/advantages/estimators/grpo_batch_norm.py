from gdpo.advantages._types import Advantages, Rewards, Weights
from gdpo.advantages.arrays import finish, prepare
from gdpo.advantages.stages import BATCH, SAMPLES, centre, scale, standardize, weighted_sum


def grpo_batch_norm(rewards: Rewards, weights: Weights) -> Advantages:
    r"""Compute GRPO and then apply GDPO's batch normalization, as a control in experiments.

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(\frac{s - \bar s}{\mathrm{std}_{\text{group}}(s)}
       \Bigr). $$

    Its difference from `gdpo` comes from normalizing each reward separately. Its difference from
    `grpo` comes from batch normalization, which multiplies the batch by one factor that grows with
    the share of zero-advantage groups. We know of no paper that uses this estimator.

    References:
        For the batch normalization: https://arxiv.org/abs/2601.05242, Eq. 6. The published GDPO
        code contains an unused estimator of this kind.

    Examples:
        >>> import numpy as np
        >>> grpo_batch_norm(np.array([[[0.0], [1.0]], [[2.0], [2.0]]]), [1]).round(4)
        array([[-1.2247,  1.2247],
               [ 0.    ,  0.    ]])
    """
    r, w = prepare(rewards, weights)
    total = weighted_sum(centre(r, over=SAMPLES), w)
    return finish(standardize(scale(total, over=SAMPLES), over=BATCH), rewards)
