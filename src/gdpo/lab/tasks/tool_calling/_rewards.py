"""Defines the format and correctness rewards of the `tool_calling` task."""

from collections import Counter
from collections.abc import Sequence
from math import inf

from gdpo.errors import DataError
from gdpo.lab.tasks.tool_calling.calls import ToolCall, parse, parse_gold, same_value
from gdpo.rewards import Example, Reference, Reward
from gdpo.rewards.reward import binary, examples_of
from gdpo.rewards.text import holds_something


def best_total(weights: Sequence[Sequence[float]]) -> float:
    """Return the largest sum of weights that uses every row and every column at most once.

    This is the Hungarian algorithm, in O(rows² x (rows + columns)). All weights are at least 0.
    """
    rows = len(weights)
    if not rows or not weights[0]:
        return 0.0
    # One empty column per row lets any row stay unassigned. Costs are negative weights.
    costs = [[-weight for weight in row] + [0.0] * rows for row in weights]
    columns = len(costs[0])
    row_potential = [0.0] * rows
    column_potential = [0.0] * columns
    owner = [-1] * columns
    for row in range(rows):
        _augment(costs, row, owner, row_potential, column_potential)
    # Sum the weights instead of the potentials, so that a sum of integers stays exact.
    real = range(len(weights[0]))
    return sum((weights[owner[column]][column] for column in real if owner[column] >= 0), 0.0)


def _augment(
    costs: Sequence[Sequence[float]],
    row: int,
    owner: list[int],
    row_potential: list[float],
    column_potential: list[float],
) -> None:
    """Assign a column to `row` along the shortest augmenting path, with feasible potentials."""
    columns = len(owner)
    distance = [inf] * columns
    came_from = [-1] * columns
    done: list[int] = []
    open_columns = set(range(columns))
    current, column, reached = row, -1, 0.0
    while current >= 0:
        for j in open_columns:
            through = reached + costs[current][j] - row_potential[current] - column_potential[j]
            if through < distance[j]:
                distance[j], came_from[j] = through, column
        column = min(open_columns, key=lambda j: (distance[j], j))
        reached = distance[column]
        open_columns.remove(column)
        done.append(column)
        current = owner[column]
    row_potential[row] += reached
    for j in done[:-1]:
        row_potential[owner[j]] += reached - distance[j]
        column_potential[j] -= reached - distance[j]
    while column >= 0:
        previous = came_from[column]
        owner[column] = owner[previous] if previous >= 0 else row
        column = previous


LOW, HIGH = -3.0, 3.0

_MOST_CALLS = 256
"""A completion with more calls than this, and with more calls than the reference answer, gets the
lowest score. No task needs so many calls, and matching many calls is slow."""


def gold_calls(output: str) -> tuple[ToolCall, ...]:
    """Return the calls in a reference answer, empty without a `<tool_call>` field."""
    gold = parse_gold(output)
    if gold.calls is None or ("tool_call" in gold.fields and not gold.calls):
        raise DataError(
            "the calls in the reference answer cannot be parsed. Between <tool_call> and "
            '</tool_call>, use JSON objects with a "name" (text) and "parameters" (an object)'
        )
    return gold.calls


def _correctness(completion: str, reference: Reference) -> float | None:
    gold = gold_calls(reference["output"])
    if not gold:
        return None
    written = parse(completion).calls
    if written is None or len(written) > max(_MOST_CALLS, len(gold)):
        return LOW
    possible = 1 + sum(1 + len(call.parameters) for call in gold)
    return (HIGH - LOW) * _found(gold, written) / possible + LOW


def _found(gold: Sequence[ToolCall], written: Sequence[ToolCall]) -> float:
    """Return at most 1 point for all names, and 1 plus 1 per parameter for each call."""
    found = _overlap([call.name for call in gold], [call.name for call in written])
    for name in {call.name: None for call in gold}:  # not a set: the sum must not depend on hashes
        ours = [call for call in gold if call.name == name]
        theirs = [call for call in written if call.name == name]
        found += best_total([[_likeness(one, other) for other in theirs] for one in ours])
    return found


def _likeness(gold: ToolCall, written: ToolCall) -> float:
    """Return the overlap of parameter names, plus 1 for each equal parameter value."""
    right = sum(
        name in written.parameters and same_value(value, written.parameters[name])
        for name, value in gold.parameters.items()
    )
    return _overlap(list(gold.parameters), list(written.parameters)) + right


def _overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the Jaccard index of two multisets, or 1 if both are empty."""
    ours, theirs = Counter(a), Counter(b)
    union = (ours | theirs).total()
    return (ours & theirs).total() / union if union else 1.0


def _calls(*lines: str) -> str:
    return "<think> so </think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>"


_SUM = '{"name": "add", "parameters": {"a": 1, "b": 2}}'

_GOLD = {"output": _calls(_SUM)}

_TWO = {
    "output": _calls(
        '{"name": "f", "parameters": {"x": 1}}', '{"name": "f", "parameters": {"x": 2}}'
    )
}

_TALK = {"output": "<think> so </think>\n<response> hello </response>"}

correctness_reward = Reward(
    name="correctness",
    function=_correctness,
    low=LOW,
    high=HIGH,
    examples=(
        *examples_of(
            _GOLD,
            {
                _GOLD["output"]: 3.0,
                '<tool_call>[{"name": "add",\n "parameters": {"b": 2, "a": 1}}]</tool_call>': 3.0,
                _calls('{"name": "add", "parameters": {"a": 1, "b": 3}}'): 1.5,  # 3 of 4
                _calls('{"name": "add", "parameters": {"a": true, "b": "2"}}'): 0.0,
                _calls(_SUM, _SUM): 2.25,  # one call too many: names overlap by half
                _calls('{"name": "sub", "parameters": {"a": 1, "b": 2}}'): -3.0,
                _calls('{"name": "add", "parameters": '): -3.0,
                "It is 3.": -3.0,
            },
        ),
        Example(
            _calls(
                '{"name": "f", "parameters": {"x": 2}}', '{"name": "f", "parameters": {"x": 1}}'
            ),
            _TWO,
            3.0,
        ),
        Example(_GOLD["output"], _TALK, None),
    ),
)
"""Agreement with the reference calls, in [-3, 3].

Reference calls are matched to written calls of the same name so that the sum is largest. If J is
the Jaccard index of two multisets of names, the score is

    found = J(names) + Σ_reference [J(parameter names) + equal values]
    correctness = 6 · found / (1 + Σ_reference [1 + parameters]) - 3.

If the calls in the reference answer cannot be parsed, the reward raises a DataError. Loading the
rows raises the same error earlier.
"""

_CALL = '{"name": "clock", "parameters": {}}'
_GOLD_CALL = {"output": f"<think> look </think>\n<tool_call>\n{_CALL}\n</tool_call>"}
_GOLD_ANSWER = {"output": "<think> known </think>\n<response> noon </response>"}
_GOLD_BOTH = {"output": f"{_GOLD_CALL['output']}\n<response> looking </response>"}


def _format(completion: str, reference: Reference) -> float:
    needed = parse_gold(reference["output"]).fields
    written = parse(completion)
    thought = written.thinking is not None and holds_something(written.thinking)
    return float(thought and written.clean and written.fields == needed)


format_reward = binary(
    "format",
    _format,
    *examples_of(
        _GOLD_CALL,
        {
            _GOLD_CALL["output"]: 1.0,
            _GOLD_ANSWER["output"]: 0.0,  # responds instead of calling a tool
            f"<think>a <tool_call> helps</think><tool_call>{_CALL}</tool_call>": 1.0,
            f"<tool_call>{_CALL}</tool_call>": 0.0,  # no thinking
        },
    ),
    *examples_of(
        _GOLD_ANSWER,
        {
            _GOLD_ANSWER["output"]: 1.0,
            "<think> known </think>\n<response> </response>": 0.0,  # empty
            "<think>a</think><response>b</response> bye": 0.0,  # text outside
            "": 0.0,
        },
    ),
    *examples_of(
        _GOLD_BOTH,
        {
            _GOLD_BOTH["output"]: 1.0,
            _GOLD_CALL["output"]: 0.0,  # the response is missing
        },
    ),
    scope="opened",
)
"""1 if the completion has the required fields, regardless of their content, otherwise 0.

A `<think>` that the chat template has opened counts."""
