"""Decides which rollouts of an optimizer step are computed together, by numbers of tokens.

A group is computed at the cost of its prompt and its completions. `pieces_of` and `dealt` plan such
calls, `split` the padded micro-batches where rows cannot be flat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True)
class RolloutTokens:
    prompt: int
    """Number of prompt tokens."""
    completion: int
    """Number of completion tokens, up to the last token that the loss counts."""
    counted: int = 0
    """Number of tokens that the loss counts."""
    contributes: bool = True
    group: int = 0
    """Rollouts with the same number have the same prompt."""


def shortest(rows: Sequence[RolloutTokens]) -> int:
    """Return the place of the rollout with the fewest tokens."""
    return min(range(len(rows)), key=lambda i: rows[i].prompt + rows[i].completion)


Piece = tuple[int, list[int]]
"""Number of tokens of rollouts of a group that are computed together, and their places."""


def pieces_of(rows: Sequence[RolloutTokens], budget: int) -> list[Piece]:
    """Return the rollouts that contribute by group, the largest groups first.

    A group of more tokens than the budget becomes several pieces, each with the prompt. If no
    rollout contributes, the shortest is computed.
    """
    used = [i for i, row in enumerate(rows) if row.contributes] or [shortest(rows)]
    pieces, latest = list[Piece](), dict[int, Piece]()
    for i in sorted(used, key=lambda i: rows[i].completion, reverse=True):
        tokens, places = latest.get(rows[i].group, (0, []))
        if not places or tokens + rows[i].completion > budget:
            pieces += [(tokens, places)] if places else []
            tokens, places = rows[i].prompt, []
        latest[rows[i].group] = (tokens + rows[i].completion, [*places, i])
    return sorted([*pieces, *latest.values()], key=lambda piece: piece[0], reverse=True)


def dealt(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """Distribute pieces over a number of calls of similar size, the largest first."""
    calls: list[Piece] = [(0, []) for _ in range(count)]
    for tokens, places in pieces:
        i = min(range(count), key=lambda i: calls[i][0])
        calls[i] = (calls[i][0] + tokens, calls[i][1] + places)
    return sorted(calls, key=lambda call: call[0], reverse=True)


def calls_needed(pieces: Sequence[Piece], parts: int, budget: int) -> int:
    """Return the least number of calls within the budget, at most `parts` or one for each piece."""
    least, most = sum(tokens for tokens, _ in pieces) // budget, min(parts, len(pieces))
    counts = (n for n in range(max(1, least), most) if dealt(pieces, n)[0][0] <= budget)
    return next(counts, most)


def split(rows: Sequence[RolloutTokens], count: int, parts: int) -> list[list[int]]:
    """Choose `count` rows, and return the places of the rows of each padded micro-batch.

    Rows that contribute are taken first, then the shortest of the others.
    """
    by_use = sorted(range(len(rows)), key=lambda i: (not rows[i].contributes, rows[i].completion))
    wanted = sorted(by_use[:count], key=lambda i: rows[i].completion, reverse=True)
    # The remainder goes to the last micro-batches, so that no micro-batch is larger than TRL's.
    sizes, left = [(count + i) // parts for i in range(parts)], iter(wanted)
    return [list(islice(left, size)) for size in sizes]
