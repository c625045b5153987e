"""Writes and scores what the attack on a recipe compares: right, wrong and lazy completions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gdpo._shapes import Bool, Float
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.lazy import (
    form_of,
    in_place_of,
    lazy_completions,
    padded,
    shell_of,
    without_form,
)
from gdpo.lab.training._recorded import Recorded
from gdpo.lab.training._reward_checks import gold_of
from gdpo.rewards import Scorer
from gdpo.rewards.reward import Messages
from gdpo.rewards.weights_column import weights_of_cells

ROWS = 64
"""Maximum number of rows of an attack."""

ASKED_ROWS = 8
"""Maximum number of rows if a reward calls a service, because each call may cost money."""

_OTHERS = 5
"""Number of reference answers of other rows that are tried on a row."""

_VARIANTS = 3
"""Number of right and of wrong completions of each kind on a row. They differ in length."""

_LENGTHS = (0.25, 0.75)
"""Honest completions have between these shares of the maximum number of tokens."""

_JUDGES = 0.75
"""A reward judges correctness if it prefers the reference answer in at least this share of the
comparisons with reference answers of other rows, and with the form alone. By symmetry, a reward
that does not depend on the row prefers it to those of other rows in at most half."""

RIGHT, IN_FORM, FORMLESS = range(3)
"""Kinds of honest completions: right, wrong in the reference answer's form, wrong without it."""


@dataclass(frozen=True, slots=True)
class Row:
    """Stores a row with a reference answer and reference answers of other rows that are wrong."""

    place: int
    """Index of the row in the data."""
    problem: Problem
    gold: str
    others: tuple[str, ...]


@dataclass(slots=True)
class Completions:
    """Stores all completions of an attack. The lists have one item per completion."""

    texts: list[str] = field(default_factory=list[str])
    talks: dict[int, Messages] = field(default_factory=dict[int, Messages])
    """Messages of recorded completions, by index. Their text is the model's text in them."""
    tokens: list[int] = field(default_factory=list[int])
    problems: list[Problem] = field(default_factory=list[Problem])
    honest: list[list[list[int]]] = field(default_factory=list[list[list[int]]])
    """For each row, the indices of the constructed honest completions of each kind."""
    recorded: list[list[int]] = field(default_factory=list[list[int]])
    """For each row, the indices of the recorded completions."""
    lazy: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    """For each lazy policy, its completion by row."""
    hedged: set[str] = field(default_factory=set[str])
    """Policies whose completions contain the reference answer."""

    def add(self, problem: Problem, texts: Iterable[str], tokens: Iterable[int]) -> list[int]:
        """Add completions of a problem, and return their indices."""
        start = len(self.texts)
        for text, count in zip(texts, tokens, strict=True):
            self.texts.append(text)
            self.tokens.append(count)
            self.problems.append(problem)
        return list(range(start, len(self.texts)))

    def scored(self, scorer: Scorer) -> Float[np.ndarray, "completion reward"]:
        """Return the raw rewards of all completions."""
        references = [problem.reference for problem in self.problems]
        completions = [self.talks.get(i, text) for i, text in enumerate(self.texts)]
        return scorer.score(completions, references, num_tokens=self.tokens).values


def candidates(
    task: Task, problems: Sequence[Problem], *, first: Iterable[int], most: int, seed: int
) -> list[Row]:
    """Return rows with reference answers of other rows, whose text differs from the row's own.

    Reference answers with the same form are preferred.

    Args:
        task: The task, which writes the reference answers.
        problems: All rows.
        first: Indices of rows that are taken first, if they have a reference answer.
        most: Maximum number of rows.
        seed: Seed of the choice.
    """
    random = np.random.default_rng(seed)
    each = enumerate(problems)
    golds = {i: gold for i, problem in each if (gold := gold_of(task, problem, i + 1))}
    firsts = [i for i in dict.fromkeys(first) if i in golds]
    rest = [i for i in random.permutation(len(problems)).tolist() if i in golds]
    pool = rest[: 8 * ROWS]
    rows: list[Row] = []
    for i in list(dict.fromkeys((*firsts, *rest)))[:most]:
        order = [pool[j] for j in random.permutation(len(pool))]
        texts = dict.fromkeys(golds[j] for j in order if _differs(problems[i], problems[j]))
        texts.pop(golds[i], None)
        best = sorted(texts, key=lambda text: form_of(text) != form_of(golds[i]))
        others = tuple(in_place_of(golds[i], text) for text in best[:_OTHERS])
        rows.append(Row(i, problems[i], golds[i], others))
    return [row for row in rows if row.others]


def _differs(one: Problem, other: Problem) -> bool:
    return one.answer is None or one.answer != other.answer


@dataclass(frozen=True, slots=True)
class Judged:
    """Stores which rewards judge correctness, and the rows on which they do."""

    judges: tuple[int, ...]
    """Indices of the rewards."""
    rows: tuple[Row, ...]
    """The rows. Their `others` are only those that are wrong."""


def judge(resolved: Resolved, scorer: Scorer, rows: Sequence[Row], tokens: int) -> Judged:
    """Find the rewards that judge correctness, and the rows whose reference answer is right.

    A reward judges correctness if it prefers a row's own reference answer to those of other rows
    and to its form without an answer.
    """
    tried = Completions()
    for row in rows:
        texts = (row.gold, shell_of(row.gold), *row.others)
        tried.add(row.problem, texts, [tokens] * len(texts))
    values = tried.scored(scorer) * directions(resolved, tried.problems)
    each = np.split(values, np.cumsum([2 + len(row.others) for row in rows])[:-1])
    to_shell = _preference([of_row[:2] for of_row in each])
    to_others = _preference([np.delete(of_row, 1, axis=0) for of_row in each])
    judges = tuple(np.flatnonzero(np.minimum(to_shell, to_others) >= _JUDGES).tolist())
    kept = (_usable(row, of_row[:, judges]) for row, of_row in zip(rows, each, strict=True))
    return Judged(judges, tuple(row for row in kept if row is not None) if judges else ())


def weights_of(
    resolved: Resolved, problems: Sequence[Problem]
) -> Float[np.ndarray, "problem reward"]:
    """Return the weights of problems. NaN means that the reward does not apply to the problem.

    Raises:
        DataError: If the weights of a problem are invalid.
    """
    cells = [problem.weights for problem in problems]
    column = resolved.recipe.data.weights_column or "weights"
    return weights_of_cells(cells, resolved.names, resolved.weights, column=column)


def directions(
    resolved: Resolved, problems: Sequence[Problem]
) -> Float[np.ndarray, "problem reward"]:
    """Return 1, or -1 for a negative weight, or NaN if the reward does not apply."""
    weights = weights_of(resolved, problems)
    return np.where(np.isnan(weights), np.nan, np.where(weights < 0, -1.0, 1.0))


def is_right(
    values: Float[np.ndarray, "completion judge"], gold: Float[np.ndarray, " judge"]
) -> Bool[np.ndarray, " completion"]:
    """Return which completions score as high as the reference answer in every applicable reward."""
    return np.all(np.isnan(gold) | (values >= gold), axis=1)


def _preference(
    rows: Sequence[Float[np.ndarray, "completion reward"]],
) -> Float[np.ndarray, " reward"]:
    """Return how often each reward prefers the first completion of a row, from 0 to 1."""
    pairs = [np.where(np.isnan(v[:1] - v[1:]), np.nan, v[:1] > v[1:]) for v in rows]
    compared = np.concatenate(pairs)
    return np.nansum(compared, axis=0) / np.maximum(np.sum(~np.isnan(compared), axis=0), 1)


def _usable(row: Row, values: Float[np.ndarray, "completion judge"]) -> Row | None:
    """Return the row with only its wrong others. None: it has none, or no judge applies to it."""
    if np.all(np.isnan(values[0])):
        return None
    right = is_right(values[2:], values[0])
    others = tuple(text for text, equal in zip(row.others, right, strict=True) if not equal)
    return Row(row.place, row.problem, row.gold, others) if others else None


def write_completions(
    task: Task,
    rows: Sequence[Row],
    recorded: Mapping[int, Sequence[Recorded]],
    *,
    budget: int,
    seed: int,
) -> Completions:
    """Return the completions of all rows, which are not scored yet.

    Constructed honest completions get the lengths of the recorded ones. If nothing is recorded,
    they get 25 to 75 % of the budget.

    Args:
        task: The task.
        rows: Rows with reference answers of other rows.
        recorded: Recorded completions by the index of the row in the data.
        budget: Maximum number of tokens in a completion.
        seed: Seed of the lengths.
    """
    random = np.random.default_rng(seed)
    lengths = [each.num_tokens for some in recorded.values() for each in some]
    low, high = (max(1, int(share * budget)) for share in _LENGTHS)
    found = Completions()
    for i, row in enumerate(rows):
        size = 3 * _VARIANTS
        drawn = random.choice(lengths, size) if lengths else random.integers(low, high + 1, size)
        found.honest.append(_honest(found, task, row, [int(count) for count in drawn]))
        honest = {found.texts[place] for kind in found.honest[-1] for place in kind}
        lazy = lazy_completions(task, row.problem, others=row.others, budget=budget)
        lazy = [each for each in lazy if each.text not in honest]
        for each in lazy:
            place = found.add(row.problem, [each.text], [each.num_tokens])
            found.lazy.setdefault(each.policy, {})[i] = place[0]
        found.hedged |= {each.policy for each in lazy if each.needs_gold}
        written = {each.text for each in lazy}
        real = [each for each in recorded.get(row.place, ()) if each.text not in written]
        texts, tokens = [each.text for each in real], [each.num_tokens for each in real]
        found.recorded.append(found.add(row.problem, texts, tokens))
        for place, each in zip(found.recorded[-1], real, strict=True):
            if not isinstance(each.completion, str):
                found.talks[place] = each.completion
    return found


def _honest(found: Completions, task: Task, row: Row, counts: Sequence[int]) -> list[list[int]]:
    """Add right and wrong completions of a row. The first of several others is for lazy ones."""
    wrong = row.others[1:] or row.others
    others = [wrong[i % len(wrong)] for i in range(_VARIANTS)]
    plain = [without_form(other) if form_of(row.gold) else task.bad_completion for other in others]
    places: list[list[int]] = []
    for kind, texts in enumerate(([row.gold] * _VARIANTS, others, plain)):
        some = counts[kind * _VARIANTS : (kind + 1) * _VARIANTS]
        long = [padded(text, count) for text, count in zip(texts, some, strict=True)]
        places.append(found.add(row.problem, long, some))
    return places


def with_real_failures(
    found: Completions, rows: Sequence[Row], right: Bool[np.ndarray, " completion"]
) -> list[list[list[int]]]:
    """Return the honest completions of each row and kind, with recorded failures where they exist.

    Args:
        found: The completions.
        rows: Their rows.
        right: Whether each completion is right.
    """
    kinds: list[list[list[int]]] = []
    for row, honest, recorded in zip(rows, found.honest, found.recorded, strict=True):
        wrong = [i for i in recorded if not right[i]]
        same = [i for i in wrong if form_of(found.texts[i]) == form_of(row.gold)]
        other = [i for i in wrong if i not in same]
        kinds.append([honest[RIGHT], same or honest[IN_FORM], other or honest[FORMLESS]])
    return kinds
