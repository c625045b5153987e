"""Decides which rollouts are computed together, and whether their prompts are computed once.

The decisions are based on token counts, padding included.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CallCost:
    """What a forward and a backward pass cost, in tokens: `max(least, fixed + tokens)`."""

    fixed: int = 0
    least: int = 0

    def cost(self, tokens: int) -> int:
        return max(self.least, self.fixed + tokens)


def call_of(device: str, layers: int, parameters: int) -> CallCost:
    """Return what a call of a model costs on a type of device.

    On a CPU, a `fixed` from 8 to 64 changed the time of a step by at most 7 %. On one H200, a call
    in the shape of Qwen2.5-1.5B took as long with 16 tokens as with 4,900
    (`python -m benchmarks.call_cost`): Python takes time for each layer, and the GPU for each
    parameter and token.
    """
    if device == "cpu":
        return CallCost(fixed=32)
    return CallCost(least=round(2.7e11 * layers / parameters))


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


@dataclass(frozen=True)
class SharingPlan:
    shared: bool
    """Whether each prompt is computed once."""
    chunks: tuple[tuple[int, ...], ...]
    """Places of the rows whose completions are computed together."""
    cost: int
    """Cost in tokens, calls included."""


def planned(rows: Sequence[RolloutTokens], call: CallCost | None) -> SharingPlan:
    r"""Return the cheapest way to compute the rows of a micro-batch.

    With $P$ tokens in the longest prompt, $G$ prompts and $C_i$ tokens in completion $i$, the rows
    cost $n (P + \max_i C_i)$ tokens in one call. If each prompt is computed once, the call of the
    prompts costs $G (P - 1)$, and each chunk of $m$ completions $m (1 + \max_i C_i)$: the last
    token of the prompt is computed again. `call` adds the other costs. None: prompts cannot be
    shared.
    """
    prompt = max(row.prompt for row in rows)
    together = len(rows) * (prompt + max(row.completion for row in rows))
    cost = together if call is None else call.cost(together)
    plain = SharingPlan(shared=False, chunks=(tuple(range(len(rows))),), cost=cost)
    groups = len({row.group for row in rows})
    if call is None or prompt < 2 or groups == len(rows):
        return plain
    order = sorted(range(len(rows)), key=lambda i: rows[i].completion)
    # cheapest[n]: what the n shortest completions cost, and where their last chunk begins.
    cheapest = [(0, 0)]
    for end, place in enumerate(order, 1):
        width = 1 + rows[place].completion
        ways = (
            (cost + call.cost((end - begin) * width), begin)
            for begin, (cost, _) in enumerate(cheapest)
        )
        cheapest.append(min(ways))
    chunks, end = list[tuple[int, ...]](), len(rows)
    while end:
        begin = cheapest[end][1]
        chunks.append(tuple(order[begin:end]))
        end = begin
    cost = call.cost(groups * (prompt - 1)) + cheapest[-1][0]
    shared = SharingPlan(shared=True, chunks=tuple(chunks), cost=cost)
    return min(plain, shared, key=lambda plan: plan.cost)


def split(
    rows: Sequence[RolloutTokens], count: int, parts: int, call: CallCost | None
) -> list[list[int]]:
    """Choose `count` rows, and return the places of the rows of each micro-batch.

    Rows that contribute are taken first, then the shortest of the others.
    """
    by_use = sorted(range(len(rows)), key=lambda i: (not rows[i].contributes, rows[i].completion))
    wanted = sorted(by_use[:count], key=lambda i: rows[i].completion, reverse=True)
    longest = dict[int, int]()
    for place in wanted:
        longest.setdefault(rows[place].group, rows[place].completion)
    by_group = sorted(wanted, key=lambda i: (-longest[rows[i].group], rows[i].group))
    size, more = divmod(count, parts)
    # The remainder goes to the last micro-batches, so that no micro-batch is larger than TRL's.
    sizes = [size + (i >= parts - more) for i in range(parts)]

    def cut(order: Sequence[int]) -> list[list[int]]:
        ends = list(itertools.accumulate(sizes, initial=0))
        return [list(order[start:end]) for start, end in itertools.pairwise(ends)]

    def cost(places: Sequence[Sequence[int]]) -> int:
        return sum(planned([rows[i] for i in here], call).cost for here in places if here)

    return min((cut(order) for order in (wanted, by_group)), key=cost)


def chunks(items: Sequence[int], size: int) -> Iterator[list[int]]:
    return (list(items[i : i + size]) for i in range(0, len(items), size))
