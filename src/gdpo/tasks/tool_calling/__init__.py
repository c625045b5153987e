"""Tool calling after ToolRL: think, then call tools, or respond, or both.

A completion is `<think>…</think>`, then `<tool_call>…</tool_call>` with one JSON object per call,
then `<response>…</response>`. The reference answer of the row determines which of the two fields
are needed. The rewards, in order:

- **format** in {0, 1}: the completion has exactly the fields of the reference answer, in the same
  order, with no text outside them.
- **correctness** in [-3, 3]: overlap of tool names, parameter names and parameter values with the
  calls of the reference answer.

The task `tool_calling` differs from the published code (ToolRL's `rlla.py`) in the points below.
`tool_calling_compatible` gives exactly the published numbers, and `None` where that code raises.

Format:

1. The thinking ends at the first `</think>`, and may contain any tag. Published: a needed tag
   inside the thinking gives 0; a tag inside the thinking of the reference answer counts as needed;
   text between the first `</think>` and a later one passes.
2. Any amount of whitespace is allowed around and inside fields. Published: one newline between
   fields, and at least one after `<tool_call>` and before `</tool_call>`.
3. A tag inside a JSON string does not count. Published: it counts, and a needed tag there gives 0.
4. A field must have visible content. Spaces, control characters and characters of zero width do not
   count. Published: empty fields get 1.
5. A field must not contain a tag, and fields that the reference answer does not have are not
   allowed. Published: only tags of needed fields are counted, so a response may contain a
   `<tool_call>`.
6. The order and number of fields must equal those of the reference answer. Published: the calls
   first, one field each.

Correctness:

7. If the reference answer has no call, the reward does not apply (`None`). Published: 0 for every
   completion.
8. Calls may span several lines, share a line, be separated by blank lines, or form a JSON list.
   Published: -3.
9. The calls are read from all closed `<tool_call>` fields after the thinking. A field that is not
   closed makes them unreadable. Published: the calls after the first `<tool_call>` anywhere, if
   there is a `</tool_call>` anywhere; so calls inside the thinking count, and calls in a second
   field are ignored.
10. Reference calls are assigned to written calls so that the total is largest. Published: greedily,
    in order.
11. `true` does not equal 1. Published: Python's `True == 1`. (In both, 1 equals 1.0 but not "1".)
12. Every written call must have a name that is a string and parameters that are an object.
    Otherwise the completion gets -3. Published: only calls that happen to be compared are checked.
13. `NaN` and `Infinity` are not valid JSON. Published: Python reads them.
14. More than 256 calls (or more than the reference answer has, if that is larger) get -3.
    Published: no limit, so a completion with a call for every possible value gets nearly the
    maximum.
15. If the calls of a reference answer cannot be read, reading the rows raises a DataError.
    Published: the run stops at that row.
16. An object with a duplicate key is not valid JSON, so a call cannot have two names. Published:
    the last one counts.

Ignored in both: keys of a call other than `name` and `parameters`, and digits of a number beyond
the precision of a float, because a tool would receive the same value.

Both rewards:

17. The completion is used unchanged. Published: it is first truncated at the turn tokens of Qwen
    (or Llama) and stripped.
18. The length reward and the schedules of the published code, which are off by default, do not
    exist here.
"""

from dataclasses import replace

from gdpo.tasks.task import Task
from gdpo.tasks.tool_calling import _compatible
from gdpo.tasks.tool_calling._rewards import correctness_reward, format_reward
from gdpo.tasks.tool_calling._rows import COLUMNS, gold_completion, read_row

__all__ = ["COMPATIBLE", "TASK", "correctness_reward", "format_reward"]

TASK = Task(
    name="tool_calling",
    columns=COLUMNS,
    read_row=read_row,
    rewards=(format_reward, correctness_reward),
    gold_completion=gold_completion,
    bad_completion="I would rather not say.",
)
"""The tool-calling task with rewards that compare the meaning of calls."""

COMPATIBLE = replace(
    TASK,
    name="tool_calling_compatible",
    rewards=(_compatible.format_reward, _compatible.correctness_reward),
)
"""The tool-calling task with the published reward values."""
