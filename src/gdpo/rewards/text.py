"""Defines the model's text in a completion, which is the only text that rewards score.

A completion is a string or a list of chat messages. A string is scored unchanged. In a list, only
the contents of the model's own messages count:

- The model's messages have the role `assistant`, or no role. - A content is a text, or a list of
  parts (`{"type": "text", "text": ...}`), whose texts are joined. Images, reasoning parts and tool
  calls are not content.

Some chat templates end the prompt with `<think>`, which the model then does not write. Rewards with
`scope="opened"`, such as the built-in format rewards, get this tag before the text. It is the value
of `opened` in a message (`left_open`, `after_tag`).

Rewards for an answer separate the thinking from the rest (`split_thinking`, `answer_part`).
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo._files import from_json
from gdpo.rewards.reward import Messages, Scope, as_messages

_TEXT_PARTS = (None, "text", "output_text")
"""Types of the parts of a content that are text."""


def completion_text(completion: str | Messages, scope: Scope = "last") -> str:
    r"""Return the model's text in a completion.

    Args:
        completion: A text, which is returned unchanged, or the messages of the completion, without
            those of the prompt. One message need not be in a list.
        scope: "last" for the last message of the model that has visible content, "all" for all of
            them, joined by newlines, or "opened" for the last one after the tag in `opened`.

    Returns:
        The text, which is empty without a message from the model.

    Examples:
        >>> call = {"role": "assistant", "content": "Let me look.", "tool_calls": []}
        >>> result = {"role": "tool", "content": "7"}
        >>> answer = {"role": "assistant", "content": [{"type": "text", "text": "It is 8."}]}
        >>> completion_text([call, result, answer])
        'It is 8.'
        >>> completion_text([call, result, answer], "all")
        'Let me look.\nIt is 8.'
        >>> completion_text(after_tag("2+2</think>4", left_open("2+2?<think>\n")), "opened")
        '<think>\n2+2</think>4'
    """
    if isinstance(completion, str):
        return completion
    messages = [each for each in as_messages(completion) if is_from_model(each)]
    texts = [content_text(each.get("content")) for each in messages]
    said = [text for text in texts if text.strip()] or texts[-1:]
    tags = [each.get("opened") or "" for each in messages[-1:] if scope == "opened"]
    return "".join(tags) + "\n".join(said if scope == "all" else said[-1:])


def left_open(prompt: str) -> str:
    """Return the `<think>` at the end of a prompt, with the whitespace after it, or an empty text.

    A chat template that also closes the thinking leaves nothing open.
    """
    return _LEFT_OPEN.findall(prompt)[0]


def after_tag(completion: str | Messages, tag: str) -> str | Messages:
    """Return a completion whose prompt ends with a tag (`left_open`), which may be empty."""
    return [{**each, "opened": tag} for each in as_messages(completion)] if tag else completion


def is_from_model(message: Mapping[str, Any]) -> bool:
    """Return whether the model wrote a message of a completion."""
    return message.get("role") in ("assistant", None)


def content_text(content: Any) -> str:
    """Return the text of a message's content."""
    parts: Sequence[Any] = content if isinstance(content, list | tuple) else [content]
    texts: list[Any] = []
    for part in parts:
        if not isinstance(part, Mapping):
            texts.append(part)
        elif part.get("type") in _TEXT_PARTS:
            texts.append(part.get("text"))
    return "".join(text for text in texts if isinstance(text, str))


def prompt_text(prompt: str | Messages) -> str:
    """Return the text of a prompt. Its messages all count, whatever their roles."""
    if isinstance(prompt, str):
        return prompt
    return "".join(content_text(message.get("content")) for message in prompt)


_LEFT_OPEN = re.compile(r"(?:<think>\s*)?\Z")

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Invisible characters that Unicode classifies as letters or symbols."""

_SEARCHED = 100_000
"""Number of characters at the end of a completion that are searched for the answer."""


def holds_something(text: str) -> bool:
    """Return whether a text contains a visible letter, digit, punctuation mark or symbol.

    Spaces, control characters and zero-width characters do not count.
    """
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in text)


def split_thinking(text: str) -> tuple[str | None, str]:
    """Split a completion at the first `</think>` into its thinking and the rest.

    Tags in the thinking are plain text. The thinking is None if the text does not start with
    `<think>` (after whitespace) or has no `</think>`. Without a `</think>`, the rest is the whole
    text.
    """
    before, closed, rest = text.partition("</think>")
    if not closed:
        return None, text
    begun = before.lstrip()
    return (begun.removeprefix("<think>") if begun.startswith("<think>") else None), rest


def answer_part(text: str) -> str:
    """Return at most the last 100,000 characters after the thinking in a completion."""
    return split_thinking(text)[1][-_SEARCHED:]


def from_file(column: Sequence[Any], *, decode: bool = True) -> list[str | Messages | None]:
    """Return prompts or completions from a file as texts or messages, or None if there is no text.

    A file may contain messages as JSON text. Such texts are decoded only if more than half of the
    texts in the column are messages with roles, because a single text may be a response that looks
    like messages. Other JSON, such as `[]` or a truncated list, is then no text.
    """
    texts = {text for text in column if isinstance(text, str) and text.strip()} if decode else ()
    found = {text: _decoded(text) for text in texts}
    if 2 * sum(each is not None for each in found.values()) <= len(found):
        found = {}

    def opened(value: Any) -> str | Messages | None:
        if not isinstance(value, str):
            return _messages(value)
        is_json = value in found and value.lstrip().startswith(("[", "{", "null"))
        return found[value] if is_json else value

    return list(map(opened, column))


def _decoded(text: str) -> Any:
    value = from_json(text) if text.lstrip().startswith(("[", "{")) else None
    messages: list[Any] = value if isinstance(value, list) else [value]
    has_roles = all(isinstance(each, Mapping) and each.get("role") for each in messages)
    return messages if has_roles and messages else None


def _messages(value: Any) -> Messages | None:
    if isinstance(value, Mapping) and "content" in value:
        return [value]
    if not isinstance(value, list | tuple):
        return None
    found: list[Any] = [
        {"content": each} if isinstance(each, str) else each
        for each in value
        if isinstance(each, str | Mapping)
    ]
    return found or None
