"""Finds near-duplicate texts in time linear in the number of words.

Two texts are near-duplicates if the Jaccard index of their sets of word 5-grams,

    J(a, b) = |a ∩ b| / |a ∪ b|,

is at least 0.8. Words are compared in Unicode's NFKC form, ignoring punctuation, case and
whitespace. Arithmetic signs count as words. A text with fewer than five words is a single 5-gram,
so short texts are near-duplicates only if they have the same words.

Nothing is sampled. If all 5-grams are sorted in a common order, rare ones first, two sets with J ≥
t share at least one of their first |a| - ⌈t·|a|⌉ + 1 5-grams. Each such pair is compared in full,
but a text with at most 64 others: the first that share its rarest 5-grams. This limit matters only
if more than 64 different texts share them, such as texts generated from a template.

References:
    Bayardo et al. 2007, "Scaling up all pairs similarity search", WWW.
    Chaudhuri et al. 2006, "A primitive operator for similarity joins in data cleaning", ICDE.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias
from unicodedata import normalize

import numpy as np

from gdpo.rewards.task import Problem

_Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_GRAM = 5
_FIFTHS = 4
"""Minimum Jaccard index in fifths, stored as an integer to avoid rounding."""

_MOST_TEXTS = 64
"""Maximum number of texts to compare a text with. This limit prevents quadratic running time."""

_WORD = re.compile(r"\w+|[-+*/^=<>]")


def words(text: str) -> list[str]:
    """Return the normalized words of a text."""
    return _WORD.findall(normalize("NFKC", text).casefold())


def find_alike(
    texts: Sequence[str], kinds: Sequence[Hashable] = (), *, known: int | None = None
) -> list[int | None]:
    """Return, for each text, the index of the first earlier near-duplicate, or None.

    The earlier text is itself no near-duplicate. Texts of different `kinds` are never
    near-duplicates. With `known`, texts are compared only with the first `known` texts, whose own
    result is None.
    """
    grams, ends = _ordered_grams(map(words, texts))
    index = _Index(grams, ends, kinds or [None] * len(texts))
    found: list[int | None] = []
    for i in range(len(texts)):
        like = None if known is not None and i < known else index.first_like(i)
        found.append(like)
        if i < known if known is not None else like is None:
            index.add(i)
    return found


def _ordered_grams(texts: Iterable[Sequence[str]]) -> tuple[_Numbers, list[int]]:
    """Return the distinct 5-grams in all texts as integer ids, and the end index of each text.

    Within a text, the rarest come first. A 5-gram of only one text gets a negative id.
    """
    numbers: dict[str, int] = {}
    hashes: list[int] = []
    lengths: list[int] = []
    for text in texts:
        ids = [numbers.setdefault(word, len(numbers)) for word in text]
        shifted = [ids[i:] for i in range(_GRAM)]
        # Python hashes a tuple of integers to the same 64 bits in every process.
        own = {hash(gram) for gram in zip(*shifted, strict=False)} or {hash(tuple(ids))}
        hashes.extend(own)
        lengths.append(len(own))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    _, gram, count = np.unique(
        np.array(hashes, dtype=np.int64), return_inverse=True, return_counts=True
    )
    order = np.lexsort((gram, count[gram], rows))
    alone = count[gram] == 1
    return np.where(alone, -1 - gram, gram)[order], np.cumsum(lengths).tolist()


class _Index:
    """Indexes texts by their rare 5-grams."""

    def __init__(self, grams: _Numbers, ends: list[int], kinds: Sequence[Hashable]) -> None:
        self._grams, self._starts, self._ends, self._kinds = grams, [0, *ends], ends, kinds
        self._texts: defaultdict[tuple[Hashable, int], list[int]] = defaultdict(list)
        self._same: dict[tuple[Hashable, bytes], int] = {}

    def first_like(self, i: int) -> int | None:
        """Return the first added text that text i nearly duplicates, or None."""
        kind = self._kinds[i]
        same = self._same.get((kind, self._bytes(i)))
        if same is not None:
            return same
        near: set[int] = set()
        for gram in self._rare(i):
            if len(near) < _MOST_TEXTS:
                near.update(self._texts.get((kind, gram), ()))
        if not near:
            return None
        own = set(self._of(i).tolist())
        return next((j for j in sorted(near) if self._alike(own, j)), None)

    def add(self, i: int) -> None:
        """Add text i to the texts with which later texts are compared."""
        kind = self._kinds[i]
        self._same.setdefault((kind, self._bytes(i)), i)
        for gram in self._rare(i):
            texts = self._texts[kind, gram]
            if len(texts) < _MOST_TEXTS:
                texts.append(i)

    def _of(self, i: int) -> _Numbers:
        return self._grams[self._starts[i] : self._ends[i]]

    def _bytes(self, i: int) -> bytes:
        return self._of(i).tobytes()

    def _rare(self, i: int) -> list[int]:
        own = self._of(i)
        needed = -(-_FIFTHS * len(own) // 5)
        return [gram for gram in own[: len(own) - needed + 1].tolist() if gram >= 0]

    def _alike(self, own: set[int], j: int) -> bool:
        size = self._ends[j] - self._starts[j]
        if 5 * min(len(own), size) < _FIFTHS * max(len(own), size):
            return False
        shared = len(own.intersection(self._of(j).tolist()))
        return 5 * shared >= _FIFTHS * (len(own) + size - shared)


def near_duplicates(problems: Sequence[Problem]) -> list[int | None]:
    """Return, for each problem of one task, the index of an earlier near-duplicate, or None.

    Two problems are near-duplicates if they have the same answer (ignoring case, whitespace and a
    final full stop), the same weights, and near-duplicate user texts (see this module). A problem
    without words has no near-duplicate. To keep the first problem of each group, drop those whose
    result is not None.
    """
    texts = ["\n".join(_turns(problem)) for problem in problems]
    answers = [
        "".join((problem.answer or "").casefold().split()).rstrip(".") for problem in problems
    ]
    kinds = [
        (answer, repr(problem.weights)) if words(text) else i
        for i, (text, answer, problem) in enumerate(zip(texts, answers, problems, strict=True))
    ]
    return find_alike(texts, kinds)


def overlaps(problems: Sequence[Problem], tests: Sequence[Problem]) -> list[int | None]:
    """Return, for each training problem, the index of the test problem that it overlaps, or None.

    They overlap if a single user turn, or the text of all user turns, is nearly the same in both
    (see `near_duplicates`). Answers are not compared.
    """
    known = [(text, i) for i, test in enumerate(tests) for text in _texts(test)]
    asked = [(text, i) for i, problem in enumerate(problems) for text in _texts(problem)]
    texts = [text for text, _ in (*known, *asked)]
    like = find_alike(texts, known=len(known))[len(known) :]
    found: list[int | None] = [None] * len(problems)
    for (_, i), j in zip(asked, like, strict=True):
        if j is not None and found[i] is None:
            found[i] = known[j][1]
    return found


def _texts(problem: Problem) -> list[str]:
    turns = [turn for turn in _turns(problem) if words(turn)]
    return turns if len(turns) < 2 else [*turns, "\n".join(turns)]


def _turns(problem: Problem) -> tuple[str, ...]:
    asked = (message["content"] for message in problem.prompt if message["role"] == "user")
    return problem.asked or tuple(asked)
