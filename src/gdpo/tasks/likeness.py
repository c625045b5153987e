"""Finds texts that say nearly the same, in time that grows with the number of words.

Two texts are alike if the Jaccard index of their sets of word 5-grams,

    J(a, b) = |a ∩ b| / |a ∪ b|,

is at least 0.8. Words are what is left of a text without punctuation, case and whitespace, in
Unicode's compatible form; the signs of arithmetic count as words. Of fewer than five words all
together are one 5-gram, so that short texts are alike only where their words are the same.

No pair of alike texts is missed by sampling: with the 5-grams of every text in one common order,
rare ones first, two sets with J ≥ t share one of their first |a| - ⌈t·|a|⌉ + 1, and each pair that
does is compared in full. There is one bound: a text is compared with at most 64 others, the first
that have its rarest 5-grams. It matters only where more than 64 texts that are not alike share
those: texts of one template.

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

from gdpo.tasks.task import Problem

_Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_GRAM = 5
_FIFTHS = 4
"""Of five: the least Jaccard index, in whole numbers so that no rounding decides."""

_MOST_TEXTS = 64
"""That a text is compared with. Without a bound, time would grow with the square of the rows."""

_WORD = re.compile(r"\w+|[-+*/^=<>]")


def words(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    return _WORD.findall(normalize("NFKC", text).casefold())


def find_alike(
    texts: Sequence[str], kinds: Sequence[Hashable] = (), *, known: int | None = None
) -> list[int | None]:
    """For each text the first earlier one that it is like, which is like none before it.

    Args:
        texts: In order.
        kinds: One per text; texts of different kinds are never alike. Empty: all of one kind.
        known: The first so many are what the others are compared with, and nothing else. None:
            every text is compared with those before it that are like none themselves.

    Returns:
        The other text's place, or None; always None for the known ones.
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
    """Every text's distinct 5-grams as numbers, the rarest of the corpus first; and their ends.

    A 5-gram that a single text has gets a negative number: it leads to no other text.
    """
    numbers: dict[str, int] = {}
    hashes: list[int] = []
    lengths: list[int] = []
    for text in texts:
        ids = [numbers.setdefault(word, len(numbers)) for word in text]
        shifted = [ids[i:] for i in range(_GRAM)]
        # Python hashes tuples of integers in 64 bits, alike in every process.
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
    """Texts that were added, by their rare 5-grams."""

    def __init__(self, grams: _Numbers, ends: list[int], kinds: Sequence[Hashable]) -> None:
        self._grams, self._starts, self._ends, self._kinds = grams, [0, *ends], ends, kinds
        self._texts: defaultdict[tuple[Hashable, int], list[int]] = defaultdict(list)
        self._same: dict[tuple[Hashable, bytes], int] = {}

    def first_like(self, i: int) -> int | None:
        """The first text added that text i is like."""
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
        """From now on, texts can be like text i."""
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
    """For each problem the earlier one that it repeats, or None.

    It repeats one if the same answer is wanted (but for case, whitespace and a full stop), and what
    the user said in all turns is nearly the same: the Jaccard index of the sets of word 5-grams is
    at least 0.8. Case, punctuation and whitespace do not matter. A problem that repeats another
    counts for nothing further: whoever takes them out keeps the first of each.

    Args:
        problems: Of one task, in order; their `asked` and `answer` are compared. What is asked
            without any word is like nothing.
    """
    texts = ["\n".join(_turns(problem)) for problem in problems]
    answers = [
        "".join((problem.answer or "").casefold().split()).rstrip(".") for problem in problems
    ]
    kinds = [
        a if words(text) else i for i, (text, a) in enumerate(zip(texts, answers, strict=True))
    ]
    return find_alike(texts, kinds)


def overlaps(problems: Sequence[Problem], tests: Sequence[Problem]) -> list[int | None]:
    """For each problem the test that it gives away, or None.

    It does if one turn of its user, or all together, is nearly the same as that of the test, as
    `near_duplicates` has it, whatever answer is wanted.

    Args:
        problems: What is to be trained on.
        tests: What is to be tested on.
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
