"""The correctness reward: how much of the gold calls is in the calls that were written?"""

from collections import Counter
from collections.abc import Sequence

from gdpo.errors import DataError
from gdpo.rewards import Example, Reference, Reward
from gdpo.tasks.tool_calling._assignment import best_total
from gdpo.tasks.tool_calling._calls import Call, same_value
from gdpo.tasks.tool_calling._parsing import parse, parse_gold

LOW, HIGH = -3.0, 3.0

_MOST_CALLS = 256
"""A completion with more calls than this (or than the gold text, if that has more) gets the lowest
score: no tool user means it, and matching it would cost time."""


def gold_calls(output: str) -> tuple[Call, ...]:
    """The calls of a gold text; none where it has no `<tool_call>` field after its thinking.

    Raises:
        DataError: There is such a field, and its calls cannot be read.
    """
    gold = parse_gold(output)
    if gold.calls is None or ("tool_call" in gold.fields and not gold.calls):
        raise DataError(
            "the calls of the gold text cannot be read. Allowed between <tool_call> and "
            '</tool_call>: JSON objects with a "name" (text) and "parameters" (an object)'
        )
    return gold.calls


def _correctness(completion: str, reference: Reference) -> float | None:
    """-3 to 3, by the share of the gold calls that was written; None if there are none."""
    gold = gold_calls(reference["output"])
    if not gold:
        return None
    written = parse(completion).calls
    if written is None or len(written) > max(_MOST_CALLS, len(gold)):
        return LOW
    possible = 1 + sum(1 + len(call.parameters) for call in gold)
    return (HIGH - LOW) * _found(gold, written) / possible + LOW


def _found(gold: Sequence[Call], written: Sequence[Call]) -> float:
    """What of the gold calls was written: 1 for all names, 1 and its parameters for each call."""
    found = _overlap([call.name for call in gold], [call.name for call in written])
    for name in {call.name: None for call in gold}:  # no set: the sum may not hang on hashes
        ours = [call for call in gold if call.name == name]
        theirs = [call for call in written if call.name == name]
        found += best_total([[_likeness(one, other) for other in theirs] for one in ours])
    return found


def _likeness(gold: Call, written: Call) -> float:
    """Overlap of the parameters' names, plus 1 for each gold parameter of the same value."""
    right = sum(
        name in written.parameters and same_value(value, written.parameters[name])
        for name, value in gold.parameters.items()
    )
    return _overlap(list(gold.parameters), list(written.parameters)) + right


def _overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Jaccard index of two multisets; two empty ones are the same."""
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
        Example(_GOLD["output"], _GOLD, 3.0),
        Example(
            '<tool_call>[{"name": "add",\n "parameters": {"b": 2, "a": 1}}]</tool_call>', _GOLD, 3.0
        ),
        Example(_calls('{"name": "add", "parameters": {"a": 1, "b": 3}}'), _GOLD, 1.5),  # 3 of 4
        Example(_calls('{"name": "add", "parameters": {"a": true, "b": "2"}}'), _GOLD, 0.0),
        Example(_calls(_SUM, _SUM), _GOLD, 2.25),  # one call too many: names overlap by half
        Example(
            _calls(
                '{"name": "f", "parameters": {"x": 2}}', '{"name": "f", "parameters": {"x": 1}}'
            ),
            _TWO,
            3.0,
        ),
        Example(_calls('{"name": "sub", "parameters": {"a": 1, "b": 2}}'), _GOLD, -3.0),
        Example(_calls('{"name": "add", "parameters": '), _GOLD, -3.0),
        Example("It is 3.", _GOLD, -3.0),
        Example(_GOLD["output"], _TALK, None),
    ),
)
"""In [-3, 3]. With J the Jaccard index of two multisets of names, and the gold calls assigned to
written calls of the same name so that the sum is largest,

    found = J(names) + Σ_gold [J(parameter names) + equal values]
    correctness = 6 · found / (1 + Σ_gold [1 + parameters]) - 3.

It raises a DataError where the calls of the gold text cannot be read; reading the rows does so
first.
"""
