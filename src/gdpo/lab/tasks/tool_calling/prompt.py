"""Writes prompts and completions in ToolRL's format from tools and a dialogue.

The prompt is ToolRL's verbatim, because a policy needs the prompt that it was trained with. It
comes from `instruction` and `input` of `rlla_sft.json` in https://github.com/qiancheng0/ToolRL
(Apache-2.0).
"""

import json
from collections.abc import Mapping, Sequence

from gdpo.errors import DataError
from gdpo.lab.tasks.tool_calling.calls import JsonObject
from gdpo.rewards.task import Message

_SYSTEM = """\
You are a helpful multi-turn dialogue assistant capable of leveraging tool calls to solve user \
tasks and provide structured chat responses.

**Available Tools**
In your response, you can use the following tools:
{tools}

**Steps for Each Turn**
1. **Think:** Recall relevant context and analyze the current user goal.
2. **Decide on Tool Usage:** If a tool is needed, specify the tool and its parameters.
3. **Respond Appropriately:** If a response is needed, generate one while maintaining consistency \
across user queries.

**Output Format**
```plaintext
<think> Your thoughts and reasoning </think>
<tool_call>
{{"name": "Tool name", "parameters": {{"Parameter name": "Parameter content", "... ...": "... \
..."}}}}
{{"name": "... ...", "parameters": {{"... ...": "... ...", "... ...": "... ..."}}}}
...
</tool_call>
<response> AI's final response </response>
```

**Important Notes**
1. You must always include the `<think>` field to outline your reasoning. Provide at least one of \
`<tool_call>` or `<response>`. Decide whether to use `<tool_call>` (possibly multiple times), \
`<response>`, or both.
2. You can invoke multiple tool calls simultaneously in the `<tool_call>` fields. Each tool call \
should be a JSON object with a "name" field and an "parameters" field containing a dictionary of \
parameters. If no parameters are needed, leave the "parameters" field an empty dictionary.
3. Refer to the previous dialogue records in the history, including the user's queries, previous \
`<tool_call>`, `<response>`, and any tool feedback noted as `<obs>` (if exists)."""

_HISTORY = "**Dialogue Records History**\n"
_TURNS = {"user": "\n\n<user> {} </user>", "assistant": "\n\n{}", "tool": "\n<obs> {} </obs>"}


def tool_prompt(
    tools: Sequence[JsonObject], dialogue: Sequence[Mapping[str, str]]
) -> list[Message]:
    """Return ToolRL's prompt: a system message with the tools and a user message with the dialogue.

    Args:
        tools: Tools with `name`, `description` and `parameters`, a JSON object. In ToolRL's data,
            it maps each parameter name to `{"description", "type", "default"}`.
        dialogue: Messages with `role` and `content`, from oldest to newest: `user`, `assistant` (in
            the format of `write_completion`) or `tool` (the result of the tools).

    Raises:
        DataError: If a tool lacks one of the three keys, or a role is unknown.
    """
    listed = "\n".join(_tool(number, tool) for number, tool in enumerate(tools, 1))
    history = "".join(_turn(message) for message in dialogue).lstrip("\n")
    return [
        {"role": "system", "content": _SYSTEM.format(tools=listed)},
        {"role": "user", "content": _HISTORY + history},
    ]


def _tool(number: int, tool: JsonObject) -> str:
    missing = [key for key in ("name", "description", "parameters") if key not in tool]
    if missing:
        raise DataError(
            f"tool {number} lacks {', '.join(missing)}; it has: {', '.join(tool) or 'no keys'}. "
            "Required: name, description, parameters"
        )
    parameters = json.dumps(tool["parameters"])
    described = f"Description: {tool['description']}\nParameters: {parameters}"
    return f"{number}. Name: {tool['name']}\n{described}"


def _turn(message: Mapping[str, str]) -> str:
    form = _TURNS.get(message.get("role", ""))
    if form is None or "content" not in message:
        raise DataError(
            f"a message in a dialogue must have 'content' and 'role' (one of "
            f"{', '.join(_TURNS)}), got {dict(message)!r}"
        )
    return form.format(message["content"])


def write_completion(
    thinking: str, calls: Sequence[JsonObject] = (), response: str | None = None
) -> str:
    """Return a turn in ToolRL's output format, like the reference answers in ToolRL's data.

    Each call, with `name` and `parameters`, becomes one line of JSON.
    """
    parts = [f"<think> {thinking} </think>"]
    if calls:
        lines = "\n".join(json.dumps(dict(call)) for call in calls)
        parts.append(f"<tool_call>\n{lines}\n</tool_call>")
    if response is not None:
        parts.append(f"<response> {response} </response>")
    return "\n".join(parts)
