from gdpo.advantages._types import Advantages, Number, PerReward, Rewards, Weights
from gdpo.advantages.arrays import finish, in_range, prepare, z_scores
from gdpo.advantages.stages import BATCH, soft_minimum, standardize
from gdpo.errors import ConfigError


def rvpo(
    rewards: Rewards,
    weights: Weights,
    *,
    sharpness: Number = 1.0,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> Advantages:
    r"""Take the soft minimum of the normalized rewards instead of their sum (RVPO).

    $$ A = \mathrm{norm}_{\text{batch}} \Bigl(
       -\frac{1}{\kappa} \log \frac{\sum_k w_k e^{-\kappa z_k}}{\sum_k w_k} \Bigr)
       \approx \mathrm{norm}_{\text{batch}} \Bigl(
       \bar z - \frac{\kappa}{2} \mathrm{var}_w(z_k) \Bigr). $$

    Use it if a response is useful only if it earns every reward, and gates cannot express this. A
    high reward cannot compensate for a low reward. A constant reward counts as 0 and pulls the soft
    minimum towards 0. For $\kappa \to 0$, the result approaches GDPO with weights that sum to 1.
    The mean of the soft minimum is not 0, so groups without signal get nonzero advantages. Rare
    failures have the lowest $z$ and dominate, even if their reward has a small weight.

    The paper has no weights and raises $\kappa$ from 0.5 to 2 during training. Here it is fixed.
    The formula is taken from secondary sources.

    Args:
        weights: Share of each reward in the soft minimum. Must be at least 0.
        sharpness: $\kappa$, from 0.01 to 1000. A larger κ is closer to the minimum.

    References:
        Montero et al. 2026, "RVPO", https://arxiv.org/abs/2605.05750.

    Examples:
        A sample with one of two rewards is closer to one with neither than to one with both.

        >>> import numpy as np
        >>> r = np.array([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]])
        >>> rvpo(r, [1, 1], sharpness=2).round(4)
        array([[-0.7758, -0.3466, -0.3466,  1.469 ]])
    """
    in_range("sharpness", sharpness, 0.01, 1000)
    r, w = prepare(rewards, weights)
    if bool(r.xp.any(w < 0)):
        raise ConfigError(
            "rvpo does not take negative weights: negate the reward, so that a larger value is "
            "better, and give it a positive weight"
        )
    z = z_scores(r, noise_floor)
    a = standardize(soft_minimum(z, w, sharpness=sharpness), over=BATCH)
    return finish(a, rewards, max_advantage=max_advantage)
