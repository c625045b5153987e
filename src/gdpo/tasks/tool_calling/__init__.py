"""Tool calling after ToolRL: think, then call tools, or respond, or both.

A completion is `<think>…</think>`, then `<tool_call>…</tool_call>` with one JSON object per call,
then `<response>…</response>`; which of the two the turn needs, the gold text says. Rewards, in this
order:

- **format** in {0, 1}: the fields of the gold text are there, in its order, once each, around
  nothing else;
- **correctness** in [-3, 3]: overlap of tool names, of parameter names and of parameter values with
  the gold calls.

The task `tool_calling` departs from the published code (ToolRL's `rlla.py`) in the following;
`tool_calling_compatible` gives its numbers to the last digit, and `None` where it raises.

Format:

1. The thinking ends at the first `</think>`, and what is named inside it does not matter.
   Published: a needed tag that is named in the thinking gives 0; a tag named in the thinking of the
   gold text is needed; text between the first `</think>` and a later one passes.
2. Any whitespace, or none, may stand around fields and inside them. Published: one newline between
   fields, at least one after `<tool_call>` and before `</tool_call>`.
3. A tag inside a JSON string is no tag. Published: it counts, and gives 0 if it is a needed one.
4. A field must hold something that can be seen: spaces, control characters and characters of no
   width are nothing. Published: empty ones get 1.
5. No field may hold a tag, and there may be no field that the gold text does not have. Published:
   only the tags of needed fields are counted, so a response may hold a `<tool_call>`.
6. Order and number of the fields are the gold text's. Published: the calls first, one field each.

Correctness:

7. Where the gold text has no call, it does not apply (`None`). Published: 0 for every completion.
8. Calls may be written over several lines, several to a line, with blank lines between them, and
   as a JSON list. Published: -3.
9. The calls are those of all closed `<tool_call>` fields after the thinking, and a field that is
   not closed makes them unreadable. Published: those after the first `<tool_call>`, wherever it
   stands, if a `</tool_call>` stands anywhere; so calls inside the thinking count, and calls of a
   second field are free.
10. Gold calls are assigned to written calls so that the sum is largest. Published: greedily, in
    order.
11. `true` is not 1. Published: Python's `True == 1`. (1 is 1.0 and "1" is neither, in both.)
12. Every written call must have a name that is text and parameters that are an object, or the whole
    completion gets -3. Published: only those that happen to be compared.
13. `NaN` and `Infinity` are no JSON. Published: Python reads them.
14. More than 256 calls (or than the gold text has, if that is more) get -3. Published: no bound, so
    that a call for every possible value gets nearly everything.
15. A gold text whose calls cannot be read is a DataError when the rows are read. Published: the run
    stops at that row.
16. An object with a key twice is no JSON, so that a call cannot have two names. Published: the last
    one counts.

Not looked at, as published: keys of a call beside `name` and `parameters`; and digits of a number
beyond those of a float, since a tool would be given the same value.

Both:

17. The completion is taken as it is. Published: cut at Qwen's (or Llama's) turn tokens and stripped
    first.
18. The length reward and the schedules of the published code, off by default there, are not here.
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
"""Tool calling with rewards that judge what a completion means."""

COMPATIBLE = replace(
    TASK,
    name="tool_calling_compatible",
    rewards=(_compatible.format_reward, _compatible.correctness_reward),
)
"""Tool calling with the published numbers."""
