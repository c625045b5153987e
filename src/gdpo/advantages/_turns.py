"""Provides estimators that compute one advantage per turn.

The baseline of turn t of a rollout may use only the group's other rollouts and what the rollout had
earned before turn t: its later rewards or its number of turns would make the gradient biased. All
estimators share these rules, and the scaling of `turn_gdpo`:

- Values beyond the last turn of a rollout are ignored, and the advantage there is 0.
- A reward that is NaN at a turn that was taken is left out for the whole rollout. If it does not
  apply to one turn, it must be 0 there.
- A reward must not depend on what happens after its turn. A reward for the whole rollout is an
  outcome: add it to the last turn, or use the option `outcome`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from array_api_compat import device

from gdpo._shapes import Float, Real
from gdpo.advantages.arrays import (
    PerReward,
    Weights,
    check_finite,
    finish,
    floors,
    per_reward,
    precision,
    prepare,
    turn_counts,
    wrong_axes,
)
from gdpo.advantages.stages import (
    BATCH,
    SAMPLES,
    Number,
    PreparedWeights,
    Rounded,
    centre,
    divide,
    namespace,
    scale,
    times,
    weighted_sum,
    without_oneself,
)
from gdpo.errors import ConfigError, DataError

TurnRewards: TypeAlias = Real[Any, "prompt sample turn reward"]
"""Raw rewards of each turn, each in its own unit. NaN at a turn that was taken means that the
reward does not apply to this rollout. Values beyond a rollout's last turn are ignored."""

TurnCounts: TypeAlias = Real[Any, "prompt sample"] | Sequence[Any]
"""Number of turns that each rollout took. 0: padding, no rollout."""

TurnAdvantages: TypeAlias = Float[Any, "prompt sample turn"]
"""Factor by which the policy gradient of each turn's actions is multiplied."""

# Inside this module, arrays have the axes [turn, sample, reward, prompt]. Sums over the samples and
# steps from turn to turn then run over adjacent numbers in memory.
_TURNS = 0


@dataclass(frozen=True, slots=True)
class _PreparedTurns:
    """Stores checked rewards in the dtype of the statistics, `[turn, sample, reward, prompt]`."""

    earned: Any
    """The rewards, 0 where they do not count."""
    counts: Any
    """Mask: the turn was taken, and the reward applies to the rollout."""
    complete: bool
    weights: PreparedWeights
    eps: float

    def alive(self) -> Any:
        xp = namespace(self.earned)
        there = xp.astype(self.counts, self.earned.dtype)
        alive = xp.sum(there, axis=SAMPLES, keepdims=True)
        return xp.where(alive > 0, alive, 1.0)

    def to_go(self) -> Rounded:
        """Return what each rollout earns from each turn on, NaN where it does not count."""
        xp, values, size = (
            namespace(self.earned),
            _from_here(self.earned),
            _from_here(abs(self.earned)),
        )
        typical = xp.sum(size, axis=SAMPLES, keepdims=True) / self.alive()
        values = values if self.complete else xp.where(self.counts, values, xp.nan)
        return Rounded(values, self.eps * typical, self.complete)


def turn_gdpo(
    rewards: TurnRewards,
    weights: Weights,
    *,
    turns: TurnCounts,
    outcome: Sequence[bool] | None = None,
    scales: PerReward = None,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> TurnAdvantages:
    r"""Compare each return-to-go with those of rollouts taking the turn, and scale over the batch.

    Let $G_{i,t}$ be what rollout $i$ earns of one reward from turn $t$ on, and $n_t$ the number of
    rollouts of its group that took turn $t$. The advantage of a reward is

    $$ a_{i,t} = G_{i,t} - b_{i,t}, \qquad b_{i,0} = \mathrm{mean}_{j \ne i} G_{j,0}, \qquad
       b_{i,t} = \frac{1}{n_t} \Bigl( \sum_{j \ne i,\, t < T_j} G_{j,t} + b_{i,t-1} - r_{i,t-1}
       \Bigr), $$

    where $T_j$ is the number of turns of rollout $j$. The baseline is the mean return-to-go at the
    turn, with the rollout's own replaced by its previous baseline minus its previous reward.
    Equivalently, $a_{i,0} = \frac{n_0}{n_0 - 1} (G_{i,0} - \bar G_0)$ and $a_{i,t} = G_{i,t} - \bar
    G_t + a_{i,t-1} / n_t$. If only one rollout takes a turn, it keeps its previous advantage. Then,
    over the batch,

    $$ A = \mathrm{scale} \Bigl(\sum_k w_k \frac{a_k}{\sigma_k}\Bigr), \qquad
       \sigma_k = \sqrt{\sum a_k^2 / (N - 1)}, $$

    where $N$ is the number of turns that have the reward, and *scale* divides the sum by its
    standard deviation, computed like $\sigma_k$. No batch mean is subtracted, and later rewards are
    not discounted: that would change the objective.

    With fixed `scales`, the policy gradient of every reward is unbiased for groups of two or more
    independent, on-policy rollouts. This does not cover division by standard deviations, variance,
    stale rollouts or clipping. With a single turn, $a$ is `rloo` of each reward, and the advantages
    are those of `per_reward_batch_std` divided by their standard deviation over the batch, *not*
    those of `gdpo`.

    We know of no paper that describes this estimator. TRL's GRPO and RLOO trainers have one
    advantage per rollout, and no estimator of verl 0.9.1 reads the turn rewards that verl collects.
    PipelineRL and Atropos center the rewards of each turn index, which is biased if the number of
    turns depends on the policy.

    Args:
        rewards: Raw rewards, `[prompt, sample, turn, reward]`, each in its own unit.
        weights: One weight per reward, or weights `[prompt, reward]`, applied to the scaled
            advantage of the reward. Dimensionless.
        turns: Number of turns of each rollout, `[prompt, sample]`. 0: padding.
        outcome: One boolean per reward. True: the reward is the rollout's, and every turn gets the
            advantage of `turn_broadcast`. None: no such reward.
        scales: Divisor of each reward's advantages, above 0, in the reward's unit. It replaces
            $\sigma_k$ and the scaling over the batch. None: use the standard deviations of the
            batch.
        noise_floor: As in `gdpo.advantages.estimators`. Excludes `scales`.
        max_advantage: As in `gdpo.advantages.estimators`.

    Returns:
        Dimensionless advantages, `[prompt, sample, turn]`. Turns that were not taken, rollouts
        without a reward and groups of one get 0. Without any signal, all are exactly 0.

    Raises:
        DataError: If a reward is infinite at a turn that was taken, or the array is empty or does
            not have four axes.
        ConfigError: If `turns`, `weights` or an option is invalid, or both `scales` and
            `noise_floor` are given.

    References:
        Baselines from other rollouts: Kool et al. 2019; Ahmadian et al. 2024,
        https://arxiv.org/abs/2402.14740. Scaling each reward on its own: Liu et al. 2026, "GDPO",
        https://arxiv.org/abs/2601.05242.

    Examples:
        One rollout stops after the first turn and gets 1. The other gets 3 for a second turn.

        >>> import numpy as np
        >>> r = np.array([[[[1.0], [0.0]], [[0.0], [3.0]]]])
        >>> turn_gdpo(r, [1], turns=[[1, 2]], scales=[1])
        array([[[-2.,  0.],
                [ 2.,  2.]]])
    """
    batch = _prepared(rewards, weights, turns)
    c, alive = centre(batch.to_go(), over=SAMPLES), batch.alive()
    first = without_oneself(alive[0, ...])
    values, errors = [c.values[0, ...] * first], [c.error[0, ...] * first]
    for turn in range(1, alive.shape[_TURNS]):
        values.append(c.values[turn, ...] + values[-1] / alive[turn, ...])
        errors.append(c.error[turn, ...] + errors[-1] / alive[turn, ...])
    a = Rounded(c.xp.stack(values), c.xp.stack(errors), c.complete)
    a = _with_outcomes(batch, a, outcome)
    return _scaled(batch, a, rewards, scales, noise_floor, max_advantage)


def turn_broadcast(
    rewards: TurnRewards,
    weights: Weights,
    *,
    turns: TurnCounts,
    scales: PerReward = None,
    noise_floor: PerReward = None,
    max_advantage: Number | None = None,
) -> TurnAdvantages:
    r"""Give every turn the rollout's total minus the mean total of the other rollouts.

    $$ a_{i,t} = R_i - \mathrm{mean}_{j \ne i} R_j, \qquad R_i = \sum_t r_{i,t}, $$

    scaled as in `turn_gdpo`. This is `turn_gdpo` with `outcome` for every reward: unbiased, but
    with the noise of rewards that were earned before the turn. GRPO in TRL and verl broadcasts one
    advantage per rollout too, but its mean includes the rollout itself.

    Arguments, result and errors are those of `turn_gdpo`.

    References:
        Shao et al. 2024, "DeepSeekMath", https://arxiv.org/abs/2402.03300 (outcome supervision).

    Examples:
        >>> import numpy as np
        >>> r = np.array([[[[1.0], [0.0]], [[0.0], [3.0]]]])
        >>> turn_broadcast(r, [1], turns=[[1, 2]], scales=[1])
        array([[[-2.,  0.],
                [ 2.,  2.]]])
    """
    batch = _prepared(rewards, weights, turns)
    return _scaled(batch, _totals(batch), rewards, scales, noise_floor, max_advantage)


TurnEstimator: TypeAlias = Callable[..., Any]
"""`(rewards[prompt, sample, turn, reward], weights[reward], *, turns[prompt, sample], options) ->
advantages[prompt, sample, turn]`"""

TURN_ESTIMATORS: dict[str, TurnEstimator] = {
    estimator.__name__: estimator for estimator in (turn_gdpo, turn_broadcast)
}


def _prepared(rewards: Any, weights: Weights, turns: TurnCounts) -> _PreparedTurns:
    if rewards.ndim != 4 or 0 in rewards.shape:
        raise wrong_axes(rewards, "prompt", "sample", "turn", "reward")
    xp = namespace(rewards)
    prompts, samples, longest, count = rewards.shape
    shape = (longest, samples, count, prompts)
    if not xp.isdtype(rewards.dtype, "real floating"):
        rewards = xp.astype(rewards, precision(xp, rewards.dtype)[0])
    own = xp.permute_dims(turn_counts(turns, rewards), (1, 0))[:, None, :]
    there = xp.arange(longest, dtype=own.dtype, device=device(own))[:, None, None, None] < own
    given = xp.reshape(xp.reshape(xp.permute_dims(rewards, (2, 1, 3, 0)), (-1,)), shape)
    given = xp.where(there, given, 0.0)
    check_finite(xp.permute_dims(given, (3, 1, 0, 2)))
    flat = xp.permute_dims(xp.reshape(given, (longest * samples, count, prompts)), (2, 0, 1))
    r, w = prepare(flat, weights, reorder=False)
    _, eps = precision(xp, rewards.dtype)
    xp = r.xp
    counts = xp.asarray(there, device=device(r.values))
    earned = xp.reshape(xp.permute_dims(r.values, (1, 2, 0)), shape)
    if not r.complete:
        counts = counts & ~xp.any(xp.isnan(earned), axis=_TURNS, keepdims=True)
        earned = xp.where(counts, earned, 0.0)
    largest = float(xp.max(xp.abs(earned)))
    if largest > float(xp.finfo(earned.dtype).max) / (4 * prompts * samples * longest**2):
        raise DataError(  # sums over the batch, as in a standard deviation, would overflow
            f"rewards of up to {largest:.3g} are too large for statistics of {longest} turns in "
            f"{earned.dtype}: scale them down"
        )
    return _PreparedTurns(earned, counts, r.complete and bool(xp.all(counts)), w, eps)


def _from_here(values: Any) -> Any:
    sums = [values[-1, ...]]
    for turn in range(values.shape[_TURNS] - 2, -1, -1):
        sums.append(sums[-1] + values[turn, ...])
    return namespace(values).stack(sums[::-1])


def _totals(batch: _PreparedTurns) -> Rounded:
    """Return the advantages of `turn_broadcast` for each reward, before scaling."""
    c, xp = centre(batch.to_go(), over=SAMPLES), namespace(batch.earned)
    first = Rounded(c.values[:1, ...], c.error[:1, ...], c.complete)
    a = times(first, without_oneself(batch.alive()[:1, ...]))
    return Rounded(xp.where(batch.counts, a.values, xp.nan), a.error, batch.complete)


def _with_outcomes(batch: _PreparedTurns, a: Rounded, outcome: Sequence[bool] | None) -> Rounded:
    if outcome is None:
        return a
    count = a.values.shape[2]
    if len(outcome) != count or any(type(each) is not bool for each in outcome):
        raise ConfigError(
            f"outcome must have one boolean for each of the {count} rewards, got {list(outcome)}"
        )
    xp, totals = a.xp, _totals(batch)
    mask = xp.asarray(list(outcome), device=device(a.values))[:, None]
    error = xp.where(mask, totals.error, a.error)
    return Rounded(xp.where(mask, totals.values, a.values), error, a.complete)


def _scaled(
    batch: _PreparedTurns,
    a: Rounded,
    rewards: Any,
    scales: PerReward,
    noise_floor: PerReward,
    max_advantage: Number | None,
) -> TurnAdvantages:
    xp, (prompts, samples, longest, _) = a.xp, rewards.shape
    turned = xp.permute_dims(a.values, (3, 0, 1, 2))
    values = xp.reshape(turned, (prompts, longest * samples, rewards.shape[3]))
    error = xp.permute_dims(xp.max(a.error, axis=(_TURNS, SAMPLES)), (1, 0))[:, None, :]
    a = Rounded(values, error, a.complete)
    if scales is None:
        z = scale(a, over=BATCH, floor=floors(noise_floor, values))
        total = scale(weighted_sum(z, batch.weights), over=BATCH)
    else:
        if noise_floor is not None:
            raise ConfigError(
                "scales and noise_floor cannot be combined: scales replace the standard "
                "deviations that noise_floor limits. Remove one of them"
            )
        divisors = per_reward(scales, values, name="scales")
        if not bool(xp.all(divisors > 0)):
            raise ConfigError(f"scales must be above 0, got {[float(v) for v in divisors]}")
        total = weighted_sum(divide(a, divisors), batch.weights)
    xp = namespace(rewards)
    like = xp.reshape(rewards, (prompts, samples * longest, rewards.shape[3]))
    result = finish(total, like, max_advantage=max_advantage)
    return xp.permute_dims(xp.reshape(result, (prompts, longest, samples)), (0, 2, 1))
