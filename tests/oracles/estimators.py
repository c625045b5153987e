"""The estimators written as loops from the papers' formulas, in exact-enough Python floats. Slow
and plain on purpose.
"""

import math


def _mean(values):
    return math.fsum(values) / len(values)


def _std(values):
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _standardized(values, epsilon):
    """(x - mean) / (std + epsilon) of those that are not None; a spread of 0 gives 0."""
    present = [v for v in values if v is not None]
    if not present:
        return list(values)
    mean, std = _mean(present), _std(present)
    divisor = std + epsilon
    return [None if v is None else ((v - mean) / divisor if divisor > 0 else 0.0) for v in values]


def _columns(group):
    """Reward by reward, the values of the samples of one group; None for NaN."""
    return [
        [None if math.isnan(row[k]) else float(row[k]) for row in group]
        for k in range(len(group[0]))
    ]


def _weighted(columns, weights):
    """Per sample the weighted sum of what applies; None where nothing does."""
    totals = []
    for i in range(len(columns[0])):
        terms = [
            w * column[i]
            for w, column in zip(weights, columns, strict=True)
            if column[i] is not None and w != 0
        ]
        totals.append(math.fsum(terms) if terms else None)
    return totals


def _filled(groups):
    return [[0.0 if a is None else a for a in group] for group in groups]


def _centred_sum(group, weights):
    columns = []
    for column in _columns(group):
        present = [v for v in column if v is not None]
        mean = _mean(present) if present else 0.0
        columns.append([None if v is None else v - mean for v in column])
    return _weighted(columns, weights)


def grpo(rewards, weights, epsilon=0.0):
    result = []
    for group in rewards:
        totals = _centred_sum(group, weights)
        std = _std([t for t in totals if t is not None]) + epsilon
        result.append([None if t is None else (t / std if std > 0 else 0.0) for t in totals])
    return _filled(result)


def grpo_no_std(rewards, weights):
    return _filled([_centred_sum(group, weights) for group in rewards])


def gdpo(rewards, weights, epsilon=0.0):
    groups = [
        _weighted([_standardized(c, epsilon) for c in _columns(group)], weights)
        for group in rewards
    ]
    flat = _standardized([a for group in groups for a in group], epsilon)
    size = len(rewards[0])
    return _filled([flat[i : i + size] for i in range(0, len(flat), size)])
