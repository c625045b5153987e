"""Rows that repeat others: within what is trained on, and in what is tested on."""

from collections.abc import Sequence

from gdpo.tasks._likeness import find_alike, words
from gdpo.tasks._task import Problem


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
