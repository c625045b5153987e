"""Checks whether a right response always wins under the rewards, weights and gates of a recipe.

The reward that judges correctness is the primary reward. `gdpo.priority` computes for which weights
it always wins, and whether a lazy response (`gdpo.lab.tasks.lazy`) can beat a right one.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from gdpo._shapes import Float
from gdpo._text import one_line
from gdpo.errors import ConfigError, GdpoError, boundary
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.tasks import Problem
from gdpo.lab.tasks.lazy import CHARACTERS_PER_TOKEN, lazy_completions
from gdpo.lab.training.reward_checks import CheckResult, Level, gold_of, scores_of
from gdpo.priority import (
    Combination,
    Continuous,
    Priority,
    Values,
    beats,
    example_in_words,
    in_words,
    priority,
    table_of,
)
from gdpo.rewards.weights_column import weights_of_cells

_ROWS, _ASKED_ROWS = 16, 4
"""Maximum number of rows whose responses are scored: usually, and if a reward calls a service."""

_OTHERS = 3
"""Number of reference answers of other rows that are tried on a row."""

_JUDGES = 0.75
"""A reward judges correctness if it scores the reference answer above that of another row in at
least this share of the rows. A reward that ignores the row does so in at most half."""

_LEVELS = 16
"""A reward with more different scores than this counts as continuous in its range."""

_BUDGET = 256
"""Number of tokens in a completion if the recipe sets none. This is TRL's default."""

_DIGITS = 9
"""Number of decimal places of a score. Smaller differences count as rounding errors."""

_RIGHT, _OTHER = "the reference answer", "another row's answer"

_NO_JUDGE = (
    "no reward with a positive weight scores a row's reference answer above that of another row, "
    "so no reward judges correctness"
)


def priority_findings(resolved: Resolved, problems: Sequence[Problem]) -> list[CheckResult]:
    """Return whether right responses always win: a table, and what lazy responses can do.

    At most 16 problems are used, and a token counts as 4 characters. A right response is assumed to
    use all tokens, and a reward to take the observed scores and the ends of its range. Changing
    weights are tried at their extremes, and weights per row on each row.
    """
    try:
        with boundary(ConfigError, passed=GdpoError):
            scored = _scored(resolved, problems)
            if not scored:
                return [_note("fewer than two rows have different reference answers")]
            # The primary reward has the largest weight among those that judge correctness.
            pairs = [row[_RIGHT] > row[_OTHER] for row in scored if _OTHER in row]
            weights = np.array(resolved.weights)
            judges = np.flatnonzero((np.mean(pairs, axis=0) >= _JUDGES) & (weights > 0))
            if not len(judges):
                return [_note(_NO_JUDGE)]
            primary = resolved.names[max(judges, key=lambda k: weights[k])]
            values = _values(resolved, scored)
            combined, answer = _answer(resolved, problems, values, primary)
    except GdpoError as error:
        return [_note(f"not known, because {one_line(str(error))}")]
    if answer.holds is None:
        return [_note(in_words(combined, answer))]
    level = Level.FINE if answer.holds else Level.NOTE
    table = table_of(combined, values, answer)
    found = CheckResult(level, f"priority: {in_words(combined, answer)}", table)
    return [found, *_lazy(combined, values, scored, primary)]


def _note(text: str) -> CheckResult:
    return CheckResult(Level.NOTE, f"priority: {text}")


Scored = list[Mapping[str, Float[np.ndarray, " reward"]]]
"""For each row, the raw rewards of the reference answer and of lazy responses."""


def _scored(resolved: Resolved, problems: Sequence[Problem]) -> Scored:
    asks = any(reward.asks_elsewhere for reward in resolved.rewards)
    each = enumerate(problems, 1)
    golds = {n: gold for n, problem in each if (gold := gold_of(resolved.task, problem, n))}
    budget = int(resolved.recipe.trainer.get("max_completion_length") or _BUDGET)
    rows: list[dict[str, str]] = []
    counts: list[int] = []
    tried: list[tuple[Problem, str]] = []
    for n, gold in list(golds.items())[: _ASKED_ROWS if asks else _ROWS]:
        others = list(dict.fromkeys(g for g in golds.values() if g != gold))[:_OTHERS]
        if not others:
            continue
        problem = problems[n - 1]
        lazy = lazy_completions(resolved.task, problem, others=others, budget=budget)
        rows.append({_RIGHT: gold, **lazy})
        counts.append(budget)  # a right response may need all tokens
        counts += [min(budget, len(t) // CHARACTERS_PER_TOKEN + 1) for t in lazy.values()]
        tried += [(problem, text) for text in rows[-1].values()]
    with resolved.scorer() as scorer, np.errstate(over="ignore"):
        found = scores_of(scorer, tried, counts=counts).values  # one warning, not 16
        scores = iter(np.round(found, _DIGITS))
    return [{name: next(scores) for name in row} for row in rows]


def _values(resolved: Resolved, scored: Scored) -> dict[str, Values]:
    """Return the observed scores of each reward, or its range if it has many scores."""
    every = np.concatenate([np.stack(list(row.values())) for row in scored])
    values: dict[str, Values] = {}
    for reward, seen in zip(resolved.rewards, every.T, strict=True):
        examples = {float(e.score) for e in reward.examples if e.score is not None}
        levels = {*seen[~np.isnan(seen)].tolist(), *examples}
        ends = {float(reward.low), float(reward.high)}
        between = reward.of == "tokens" and not levels <= ends
        if 0 < len(levels) <= _LEVELS and not between:
            values[reward.name] = sorted(levels | ends)
        else:
            values[reward.name] = Continuous(reward.low, reward.high)
    return values


def _answer(
    resolved: Resolved, problems: Sequence[Problem], values: Mapping[str, Values], primary: str
) -> tuple[Combination, Priority]:
    """Return the answer for the row and extreme weights that are furthest from priority."""
    recipe, names = resolved.recipe, resolved.names
    cells = [problem.weights for problem in problems]
    column = recipe.data.weights_column or "weights"
    rows = weights_of_cells(cells, names, resolved.weights, column=column)
    answers: list[tuple[tuple[bool, float], Combination, Priority]] = []
    for row in np.unique(np.nan_to_num(rows), axis=0):
        for factors in product(*map(sorted, map(set, resolved.rule.factors))):
            weights = dict(zip(names, (row * factors).tolist(), strict=True))
            if row[names.index(primary)] > 0:
                combined = Combination(
                    weights,
                    recipe.batch.samples,
                    recipe.advantage,
                    resolved.options,
                    resolved.gates,
                )
                answer = priority(combined, values, primary)
                distance = (answer.smallest or 0.0) / weights[primary]
                answers.append(((answer.holds is False, distance), combined, answer))
    if not answers:
        raise ConfigError(f"{primary} applies to no row")
    return max(answers, key=lambda each: each[0])[1:]


def _lazy(
    combined: Combination, values: Mapping[str, Values], scored: Scored, primary: str
) -> list[CheckResult]:
    """Return which lazy responses can beat the reference answer of their row."""
    names = list(combined.weights)
    place = names.index(primary)
    examples: dict[str, str] = {}
    """What happens in a group where the response wins. Empty: it always loses."""
    for row in scored:
        for policy, lazy in row.items():
            right, worse = row[_RIGHT], lazy[place] < row[_RIGHT][place]
            if worse and np.all(np.isfinite(right + lazy)) and not examples.get(policy):
                pair = (dict(zip(names, r.tolist(), strict=True)) for r in (right, lazy))
                found = beats(combined, values, primary, *pair)
                examples[policy] = example_in_words(combined, found) if found else ""
    findings: list[CheckResult] = []
    if winning := [policy for policy, example in examples.items() if example]:
        named = ", ".join(winning)
        text = f"a lazy response can beat a right one: {named}. {examples[winning[0]]}"
        findings.append(_note(text))
    if fine := [policy for policy, example in examples.items() if not example]:
        text = f"priority: a right response always beats these lazy ones: {', '.join(fine)}"
        findings.append(CheckResult(Level.FINE, text))
    return findings
