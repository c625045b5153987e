"""The format reward: are the fields there that this turn needs, in order and once each?"""

from gdpo.rewards import Example, Reference, Reward
from gdpo.tasks._thinking import holds_something
from gdpo.tasks.tool_calling._parsing import parse, parse_gold

_CALL = '{"name": "clock", "parameters": {}}'
_GOLD_CALL = {"output": f"<think> look </think>\n<tool_call>\n{_CALL}\n</tool_call>"}
_GOLD_ANSWER = {"output": "<think> known </think>\n<response> noon </response>"}
_GOLD_BOTH = {"output": f"{_GOLD_CALL['output']}\n<response> looking </response>"}


def _format(completion: str, reference: Reference) -> float:
    """1 if the completion is one closed thinking and then the fields of the gold text, else 0."""
    needed = parse_gold(reference["output"]).fields
    written = parse(completion)
    thought = written.thinking is not None and holds_something(written.thinking)
    return float(thought and written.clean and written.fields == needed)


format_reward = Reward(
    name="format",
    function=_format,
    low=0.0,
    high=1.0,
    examples=(
        Example(_GOLD_CALL["output"], _GOLD_CALL, 1.0),
        Example(_GOLD_ANSWER["output"], _GOLD_ANSWER, 1.0),
        Example(_GOLD_BOTH["output"], _GOLD_BOTH, 1.0),
        Example(_GOLD_ANSWER["output"], _GOLD_CALL, 0.0),  # answers where it should call
        Example(_GOLD_CALL["output"], _GOLD_BOTH, 0.0),  # the response is missing
        Example(
            f"<think>a <tool_call> helps</think><tool_call>{_CALL}</tool_call>", _GOLD_CALL, 1.0
        ),
        Example(f"<tool_call>{_CALL}</tool_call>", _GOLD_CALL, 0.0),  # no thinking
        Example("<think> known </think>\n<response> </response>", _GOLD_ANSWER, 0.0),  # empty
        Example("<think>a</think><response>b</response> bye", _GOLD_ANSWER, 0.0),  # text outside
        Example("", _GOLD_ANSWER, 0.0),
    ),
)
"""Binary. It judges which fields there are, never what is in them: that is the correctness
reward's."""
