"""The estimators for turns written as loops from their formulas, in Python floats. Slow and plain
on purpose.

Rewards are `rewards[prompt][sample][turn][reward]`, and the baseline of `turn_gdpo` is written as
in its docstring, not as the recursion of the advantages that the package computes.
"""

import math

from tests.oracles.estimators import _divided, _mean


def _earned(group, turns, k):
    """Return for each rollout what it earned at each turn that it took; None: missing."""
    found = []
    for rollout, count in zip(group, turns, strict=True):
        values = [float(row[k]) for row in rollout[:count]]
        found.append(None if not values or any(map(math.isnan, values)) else values)
    return found


def _to_go(values):
    return [math.fsum(values[t:]) for t in range(len(values))]


def _against_the_living(earned):
    known = [i for i, values in enumerate(earned) if values is not None]
    if len(known) < 2:
        return [None if values is None else [0.0] * len(values) for values in earned]
    g = [None if values is None else _to_go(values) for values in earned]
    result = []
    for i, values in enumerate(earned):
        if values is None:
            result.append(None)
            continue
        others = [j for j in known if j != i]
        baseline = _mean([g[j][0] for j in others])
        a = [g[i][0] - baseline]
        for t in range(1, len(values)):
            alive = [g[j][t] for j in others if t < len(g[j])]
            baseline = math.fsum([*alive, baseline - values[t - 1]]) / (len(alive) + 1)
            a.append(g[i][t] - baseline)
        result.append(a)
    return result


def _broadcast(earned):
    totals = [None if values is None else math.fsum(values) for values in earned]
    result = []
    for i, values in enumerate(earned):
        others = [total for j, total in enumerate(totals) if total is not None and j != i]
        if values is None:
            result.append(None)
        else:
            a = totals[i] - _mean(others) if others else 0.0
            result.append([a] * len(values))
    return result


def _std(values):
    """Return the standard deviation about 0; less than the rounding of these loops is 0."""
    if len(values) < 2:
        return 0.0
    std = math.sqrt(math.fsum(v * v for v in values) / (len(values) - 1))
    return std if std > 1e-12 else 0.0


def _terms(advantages, rewards, weights, turns, k):
    """Return the unscaled advantages of reward k at every place of the batch; None: no reward."""
    longest, flat = len(rewards[0][0]), []
    for group, number, w in zip(rewards, turns, weights, strict=True):
        earned = _earned(group, number, k)
        if math.isnan(w[k]):
            earned = [None] * len(group)
        for values in advantages(earned):
            values = [] if values is None else values
            flat += values + [None] * (longest - len(values))
    return flat


def _sum(terms, weights):
    present = [w * v for w, v in zip(weights, terms, strict=True) if v is not None and w != 0]
    return math.fsum(present) if present else None


def _scaled(form, rewards, weights, turns, outcome, scales, noise_floor):
    samples, longest = len(rewards[0]), len(rewards[0][0])
    own = weights if isinstance(weights[0], list) else [weights] * len(rewards)
    columns = []
    for k in range(len(own[0])):
        used = _broadcast if outcome and outcome[k] else form
        column = _terms(used, rewards, own, turns, k)
        divisor = scales[k] if scales else _std([v for v in column if v is not None])
        if noise_floor and divisor > 0:
            divisor = max(divisor, noise_floor[k])
        columns.append(_divided(column, divisor))
    flat = [
        _sum(terms, own[place // (samples * longest)])
        for place, terms in enumerate(zip(*columns, strict=True))
    ]
    if not scales:
        flat = _divided(flat, _std([v for v in flat if v is not None]))
    flat = iter(0.0 if v is None else v for v in flat)
    return [[[next(flat) for _ in range(longest)] for _ in range(samples)] for _ in rewards]


def turn_gdpo(rewards, weights, *, turns, outcome=None, scales=None, noise_floor=None):
    return _scaled(_against_the_living, rewards, weights, turns, outcome, scales, noise_floor)


def turn_broadcast(rewards, weights, *, turns, scales=None, noise_floor=None):
    return _scaled(_broadcast, rewards, weights, turns, None, scales, noise_floor)
