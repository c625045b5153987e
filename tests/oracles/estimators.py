"""The estimators written as loops from the papers' formulas, in exact-enough Python floats. Slow
and plain on purpose. `subject` states what the estimator of the same name claims.
"""

import math

from gdpo.testing import Claims


def subject(invariance, options=(), **claims):
    """State an estimator's claims and options: a dict, or a function of the rewards."""

    def stated(oracle):
        oracle.claims = Claims(invariance, prompt_weights=True, **claims)
        oracle.options = options or {}
        return oracle

    return stated


def per_reward(**values):
    """Return options with the same number for every reward."""
    return lambda rewards: {name: [v] * rewards.shape[-1] for name, v in values.items()}


def _mean(values):
    return math.fsum(values) / len(values)


def _std(values):
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return std if std > 1e-12 else 0.0  # less is the rounding of these loops


def _present(values):
    return [v for v in values if v is not None]


def _divided(values, divisor):
    """Return the values over a divisor; None stays None, and a divisor of 0 gives 0."""
    return [None if v is None else (v / divisor if divisor > 0 else 0.0) for v in values]


def _centred(values):
    present = _present(values)
    mean = _mean(present) if present else 0.0
    return [None if v is None else v - mean for v in values]


def _standardized(values, epsilon=0.0, floor=0.0):
    """Return (x - mean) / (std + epsilon) of the values that are not None; a std of 0 gives 0.

    A std below the floor is replaced by the floor.
    """
    std = _std(_present(values))
    return _divided(_centred(values), max(std, floor) + epsilon if std + epsilon > 0 else 0.0)


def _columns(group):
    """Return for each reward the values of the samples of a group, with None for NaN."""
    return [
        [None if math.isnan(row[k]) else float(row[k]) for row in group]
        for k in range(len(group[0]))
    ]


def _weighted(columns, weights):
    """Return for each sample the weighted sum of the rewards that apply; None: none applies."""
    totals = []
    for i in range(len(columns[0])):
        terms = [
            w * column[i]
            for w, column in zip(weights, columns, strict=True)
            if column[i] is not None and w != 0
        ]
        totals.append(math.fsum(terms) if terms else None)
    return totals


def _by_group(rewards, weights):
    """Return the weights of each group: one list for all, or a list for each."""
    own = isinstance(weights[0], list)
    return list(weights) if own else [weights] * len(rewards)


def _pairs(rewards, weights):
    """Return each group with its weights."""
    return list(zip(rewards, _by_group(rewards, weights), strict=True))


def _used(rewards, weights):
    """Return for each reward whether a group gives it a weight."""
    return [any(ws) for ws in zip(*_by_group(rewards, weights), strict=True)]


def _filled(groups):
    return [[0.0 if a is None else a for a in group] for group in groups]


def _centred_sum(group, weights):
    return _weighted([_centred(column) for column in _columns(group)], weights)


def _normalized_sums(rewards, weights, epsilon=0.0):
    """Return for each group the sums divided by their own std."""
    sums = [_centred_sum(group, weights) for group in rewards]
    return [_divided(totals, _std(_present(totals)) + epsilon) for totals in sums]


@subject("all", local=True)
def grpo(rewards, weights, epsilon=0.0):
    return _filled(_normalized_sums(rewards, weights, epsilon))


@subject("kept", local=True)
def grpo_no_std(rewards, weights):
    return _filled([_centred_sum(group, weights) for group in rewards])


@subject("each")
def gdpo(rewards, weights, epsilon=0.0):
    groups = [
        _weighted([_standardized(c, epsilon) for c in _columns(group)], weights)
        for group in rewards
    ]
    return _batch_standardized(groups, epsilon=epsilon)


def _signs(weights):
    return [(w > 0) - (w < 0) for w in weights]


def _batch_standardized(groups, counts=None, epsilon=0.0):
    """The sums of a batch, each counted once, or as often as it has tokens."""
    size = len(groups[0])
    flat = [a for group in groups for a in group]
    if counts is None:
        flat = _standardized(flat, epsilon)
    else:
        weighted = [(a, n) for a, n in zip(flat, counts, strict=True) if a is not None]
        tokens = math.fsum(n for _, n in weighted)
        mean = math.fsum(a * n for a, n in weighted) / max(tokens, 1)
        squares = math.fsum(n * (a - mean) ** 2 for a, n in weighted)
        std = math.sqrt(squares / (tokens - 1)) if tokens > 1 else 0.0
        flat = [None if a is None else a - mean for a in flat]
        flat = _divided(flat, std if std > 1e-12 else 0.0)
    return _filled([flat[i : i + size] for i in range(0, len(flat), size)])


def _z(group, floor=None):
    """Return standardized columns; a std below the floor of its reward is replaced by the floor."""
    columns = _columns(group)
    floor = floor or [0.0] * len(columns)
    return [_standardized(c, floor=least) for c, least in zip(columns, floor, strict=True)]


@subject("kept", local=True)
def rloo(rewards, weights):
    result = []
    for group in rewards:
        totals = _centred_sum(group, weights)
        advantages = []
        for i, total in enumerate(totals):
            others = _present(totals[:i] + totals[i + 1 :])
            advantages.append(None if total is None else (total - _mean(others) if others else 0.0))
        result.append(advantages)
    return _filled(result)


@subject("all", pooled=True)
def grpo_batch_std(rewards, weights):
    """Sums of values centred over the batch differ from the raw sums where a reward is missing."""
    pairs, size = _pairs(rewards, weights), len(rewards[0])
    columns = [_centred(c) for c in _columns([row for group in rewards for row in group])]
    flat = []
    for p, (_, of_group) in enumerate(pairs):
        flat += _weighted([c[p * size : (p + 1) * size] for c in columns], of_group)
    std = _std(_present(flat))
    return _filled([_divided(_centred_sum(group, w), std) for group, w in pairs])


@subject("all")
def grpo_batch_norm(rewards, weights):
    return _batch_standardized(_normalized_sums(rewards, weights))


@subject("each", local=True)
def mo_grpo(rewards, weights, noise_floor=None):
    return _filled([_weighted(_z(group, noise_floor), weights) for group in rewards])


def gdpo_token_weighted(rewards, weights, token_counts):
    sums = [_weighted(_z(group), weights) for group in rewards]
    return _batch_standardized(sums, [n for row in token_counts for n in row])


@subject("mixed", zero_variance_groups=False)
def gdpo_leave_one_out(rewards, weights):
    sums = []
    for group in rewards:
        columns = []
        for column in _columns(group):
            scores = []
            for i, value in enumerate(column):
                others = _present(column[:i] + column[i + 1 :])
                if value is None:
                    scores.append(None)
                    continue
                std = _std(others)
                difference = value - _mean(others) if others else 0.0
                scores.append(difference / std if std > 0 else difference)
            columns.append(scores)
        sums.append(_weighted(columns, weights))
    return _batch_standardized(sums)


@subject("each", pooled=True)
def per_reward_batch_std(rewards, weights):
    centred = [[_centred(c) for c in _columns(group)] for group in rewards]
    count = len(rewards[0][0])
    stds = [_std(_present([v for group in centred for v in group[k]])) for k in range(count)]
    return _filled(
        [
            _weighted([_divided(c, std) for c, std in zip(group, stds, strict=True)], of_group)
            for group, of_group in zip(centred, _by_group(rewards, weights), strict=True)
        ]
    )


@subject("all", local=True)
def dvao(rewards, weights):
    result = []
    for group in rewards:
        bound = math.fsum(
            abs(w) * _std(_present(c)) for w, c in zip(weights, _columns(group), strict=True)
        )
        result.append(_divided(_centred_sum(group, weights), bound))
    return _filled(result)


@subject("mixed", local=True)
def corr_grpo(rewards, weights, epsilon=1e-6):
    """Return the double sum over correlations. A missing value counts as average."""
    result = []
    for group in rewards:
        z = [[v or 0.0 for v in column] for column in _z(group)]
        n = len(group)
        used = [
            i for i, total in enumerate(_weighted(_columns(group), weights)) if total is not None
        ]
        degrees = max(len(used) - 1, 1)
        together = math.fsum(
            a * b * math.fsum(z[k][i] * z[m][i] for i in range(n)) / degrees
            for k, a in enumerate(_signs(weights))
            for m, b in enumerate(_signs(weights))
        )
        result.append(_divided(_centred_sum(group, weights), math.sqrt(together + epsilon)))
    return _filled(result)


def _gd2po(rewards, weights, drops):
    sums = []
    for group in rewards:
        z = _z(group)
        totals = _weighted(z, weights)
        kept = []
        for i, total in enumerate(totals):
            pulls = [
                (w, column[i])
                for w, column in zip(weights, z, strict=True)
                if column[i] is not None
            ]
            kept.append(None if total is None or drops(pulls) else total)
        share = len(_present(kept)) / max(len(_present(totals)), 1)
        sums.append([None if t is None else t * share for t in kept])
    return _batch_standardized(sums)


def _conflicting(pulls, threshold):
    signed = [((w > 0) - (w < 0)) * z for w, z in pulls]
    enough = threshold + 1e-12  # less is the rounding of these loops
    return any(p > enough for p in signed) and any(p < -enough for p in signed)


@subject("each", zero_variance_groups=False)
def gd2po_hard(rewards, weights, threshold=0.0):
    return _gd2po(rewards, weights, lambda pulls: _conflicting(pulls, threshold))


@subject("each", zero_variance_groups=False)
def gd2po_snr(rewards, weights, threshold=0.2):
    def drops(pulls):
        terms = [w * z for w, z in pulls]
        force = math.fsum(abs(t) for t in terms)
        # A tie at the threshold is no conflict, and rounding does not make it one.
        return _conflicting(pulls, 0.0) and abs(math.fsum(terms)) < threshold * force * (1 - 1e-12)

    return _gd2po(rewards, weights, drops)


def _emphasis_sum(columns, weights, emphasis):
    """The weights say which rewards there are, and the emphasis how much each counts."""
    scaled = [
        [None if v is None else v * e for v in column]
        for column, e in zip(columns, emphasis, strict=True)
    ]
    return _weighted(scaled, weights)


def _emphasized(rewards, weights, emphasis):
    sums = [_emphasis_sum(_z(g), w, emphasis) for g, w in _pairs(rewards, weights)]
    return _batch_standardized(sums)


def _all_of(rewards, k):
    return [row[k] for group in rewards for row in group if not math.isnan(row[k])]


@subject("mixed", per_reward(low=-10.0, high=10.0), shift=False, pooled=True)
def sa_mrpo(rewards, weights, low, high, gamma=0.5):
    emphasis = []
    for k in range(len(low)):
        values = _all_of(rewards, k)
        saturation = (_mean(values) - low[k]) / (high[k] - low[k]) if values else 0.0
        emphasis.append((1 - min(max(saturation, 0.0), 1.0)) ** gamma)
    return _emphasized(rewards, weights, emphasis)


@subject("mixed", per_reward(low=-10.0), shift=False, pooled=True)
def saw(rewards, weights, low):
    cvs, used = [], _used(rewards, weights)
    for k in range(len(low)):
        values = _all_of(rewards, k)
        above = _mean(values) - low[k] if values else 0.0
        cvs.append(_std(values) / above if above > 0 and used[k] else 0.0)
    total = math.fsum(cvs)
    return _emphasized(rewards, weights, [len(cvs) * cv / total if total else 0.0 for cv in cvs])


def _boosts(rewards, weights, max_boost):
    each = _pairs(rewards, weights)
    live = [
        sum(w[k] != 0 and _std(_present(_columns(group)[k])) > 0 for group, w in each)
        for k in range(len(rewards[0][0]))
    ]
    return [min(max_boost, max(1.0, math.sqrt(max(live) / (n or 1)))) for n in live]


@subject("each", pooled=True)
def dara_symmetric(rewards, weights, max_boost=5.0):
    return _emphasized(rewards, weights, _boosts(rewards, weights, max_boost))


@subject("each", zero_variance_groups=False, pooled=True)
def dara_asymmetric(rewards, weights, max_boost=5.0):
    boosts = _boosts(rewards, weights, max_boost)
    sums = []
    for group, of_group in _pairs(rewards, weights):
        columns = [
            [None if v is None else v + (boost - 1) * (v if w * v > 0 else 0.0) for v in column]
            for column, boost, w in zip(_z(group), boosts, of_group, strict=True)
        ]
        sums.append(_weighted(columns, of_group))
    return _batch_standardized(sums)


@subject("each", zero_variance_groups=False, constant_rewards=False, signed=False)
def rvpo(rewards, weights, sharpness=1.0):
    sums = []
    for group in rewards:
        z = _z(group)
        mins = []
        for i in range(len(group)):
            terms = [
                (w, column[i])
                for w, column in zip(weights, z, strict=True)
                if column[i] is not None and w != 0
            ]
            share = math.fsum(w for w, _ in terms)
            soft = math.fsum(w * math.exp(-sharpness * v) for w, v in terms)
            mins.append(-math.log(soft / share) / sharpness if terms else None)
        sums.append(mins)
    return _batch_standardized(sums)


@subject("each", lambda r: {"multipliers": [2.0] + [math.nan] * (r.shape[-1] - 1)}, local=True)
def constrained_grpo(rewards, weights, multipliers):
    factors = [1.0 if math.isnan(m) else m for m in multipliers]
    return _filled([_emphasis_sum(_z(group), weights, factors) for group in rewards])


def _inverse(matrix):
    """Return the inverse of a positive definite matrix by Gauss-Jordan."""
    n = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [v - rows[j][i] * u for v, u in zip(rows[j], rows[i], strict=True)]
    return [row[n:] for row in rows]


def _inverse_root(matrix):
    """Return C to the power -1/2 by the iteration of Denman and Beavers."""
    y, z = matrix, [[float(i == j) for j in range(len(matrix))] for i in range(len(matrix))]
    for _ in range(60):
        a, b = _inverse(z), _inverse(y)
        y, z = (
            [[(p + q) / 2 for p, q in zip(u, v, strict=True)] for u, v in zip(m, n, strict=True)]
            for m, n in ((y, a), (z, b))
        )
    return z


@subject("each", pooled=True)
def gdpo_decorrelated(rewards, weights, power=0.5, shrinkage=0.1):
    each = _by_group(rewards, weights)
    z = [
        [[(v or 0.0) if w else 0.0 for v in c] for c, w in zip(_z(group), of_group, strict=True)]
        for group, of_group in zip(rewards, each, strict=True)
    ]
    sums = []
    for group, of_group in zip(rewards, each, strict=True):
        new = _undone(z, of_group, power, shrinkage)
        sums.append(_weighted(_z(group), new))
    return _batch_standardized(sums)


def _undone(z, weights, power, shrinkage):
    """Return the weights of one group, corrected among the rewards that it uses."""
    used = [k for k, w in enumerate(weights) if w != 0]
    if not used:
        return weights
    flat = [[v for group in z for v in group[k]] for k in used]
    length = [math.sqrt(math.fsum(v * v for v in column)) or 1.0 for column in flat]
    c = [
        [
            1.0
            if k == m
            else (1 - shrinkage)
            * math.fsum(x * y for x, y in zip(flat[k], flat[m], strict=True))
            / (length[k] * length[m])
            for m in range(len(used))
        ]
        for k in range(len(used))
    ]
    undo = {0.5: _inverse_root, 1: _inverse}[power](c)
    new = [0.0] * len(weights)
    for k, row in zip(used, undo, strict=True):
        new[k] = math.fsum(v * weights[m] for v, m in zip(row, used, strict=True))
    return new
