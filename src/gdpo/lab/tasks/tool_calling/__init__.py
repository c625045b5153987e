"""Defines the tool-calling task of ToolRL: think, then call tools, respond, or both.

A completion consists of `<think>…</think>`, then `<tool_call>…</tool_call>` with one JSON object
per call, then `<response>…</response>`. The reference answer determines whether a call, a response
or both are required. The rewards, in order:

- **format** in {0, 1}: the completion has exactly the fields of the reference answer, in its order,
  with no text outside.
- **correctness** in [-3, 3]: how well the tool names, parameter names and parameter values agree
  with the calls in the reference answer.

`tool_calling` differs from the published code (ToolRL's `rlla.py`) in the points below.
`tool_calling_compatible` gives exactly its scores, and `None` if it raises an exception.

Format:

1. The thinking ends at the first `</think>`, and may contain any tag. In `rlla.py`, a required tag
   inside it gives 0, a tag inside the reference answer's thinking counts as required, and text
   between the first and a later `</think>` is accepted.
2. Any whitespace is allowed around and inside fields. `rlla.py` requires one newline between
   fields, and at least one after `<tool_call>` and before `</tool_call>`.
3. A tag inside a JSON string is just text. In `rlla.py`, a required tag there gives 0.
4. A field must have visible content, other than spaces, control and zero-width characters. In
   `rlla.py`, empty fields get 1.
5. A field must not contain a tag, and must occur in the reference answer. `rlla.py` counts only the
   tags of required fields, so a response may contain a `<tool_call>`.
6. The fields must have the order and number of the reference answer. `rlla.py` expects exactly one
   field of each kind, with the calls first.

Correctness:

7. If the reference answer has no call, the reward does not apply (`None`). In `rlla.py`, every
   completion gets 0.
8. Calls may span several lines, share a line, be separated by blank lines, or form a JSON list. In
   `rlla.py`, such calls get -3.
9. The calls are read from all `<tool_call>` fields after the thinking, which must all be closed.
   `rlla.py` reads those after the first `<tool_call>` anywhere, if there is a `</tool_call>`
   anywhere: calls inside the thinking count, and those in a second field do not.
10. Reference calls are matched to the written calls so that the total score is largest. `rlla.py`
    matches them greedily, in order.
11. `true` does not equal 1, unlike in `rlla.py`. (In both, 1 equals 1.0 but not "1".)
12. Unless every written call has a string as its name and an object as its parameters, the
    completion gets -3. `rlla.py` checks only the calls that it compares.
13. `NaN` and `Infinity` are not valid JSON. `rlla.py` accepts them.
14. A completion with more than 256 calls, and more than the reference answer, gets -3. `rlla.py`
    has no limit, so a call for every possible value gets nearly the maximum.
15. If a reference answer's calls cannot be parsed, loading the rows raises a DataError. `rlla.py`
    stops the run at that row.
16. An object with a duplicate key is rejected. In `rlla.py`, the last value counts.

Both versions ignore keys of a call other than `name` and `parameters`, and digits beyond the
precision of a float.

Both rewards:

17. The completion is used unchanged. `rlla.py` first truncates it at the turn tokens of Qwen (or
    Llama) and strips whitespace.
18. `rlla.py`'s length reward and schedules, off by default, are not implemented here.
"""

from dataclasses import replace

from gdpo.lab.tasks.tool_calling import _compatible
from gdpo.lab.tasks.tool_calling._rewards import correctness_reward, format_reward
from gdpo.lab.tasks.tool_calling._rows import COLUMNS, gold_completion, read_row
from gdpo.rewards.task import Task

__all__ = ["COMPATIBLE", "TASK", "correctness_reward", "format_reward"]

TASK = Task(
    name="tool_calling",
    columns=COLUMNS,
    read_row=read_row,
    rewards=(format_reward, correctness_reward),
    gold_completion=gold_completion,
    bad_completion="I would rather not say.",
)
"""Tool-calling task with rewards that compare the meaning of calls."""

COMPATIBLE = replace(
    TASK,
    name="tool_calling_compatible",
    is_published=True,
    rewards=(_compatible.format_reward, _compatible.correctness_reward),
)
"""Tool-calling task with the published reward values."""
