r"""Writes lazy completions: texts that a policy could write without solving the problem.

Most are made from the form of a reference answer. The form consists of the tags (`<answer>`), the
code fences and `\boxed{}`. Everything between them is a field.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from gdpo.rewards.task import Problem, Task

CHARACTERS_PER_TOKEN = 4
"""Assumed number of characters in a token, because no tokenizer is loaded."""

LONGEST = 4000
"""Maximum number of characters in a padded text, so that scoring stays fast."""

_MARK = re.compile(r"</?[A-Za-z_][\w-]*>|```\w*|\\boxed\{")
_WORDS = "and then we look at it once more "
_NOTHING, _NO_PROGRAM = ".", "pass"
_DEFINITION = re.compile(r"^(?P<inside>    )?(?P<kind>def|class) +(?P<name>\w+)")
_FUNCTION = re.compile(r"^ *def +(\w+)", re.MULTILINE)
_ROUNDS = 4
"""How often a call is repeated."""

POLICIES = (
    "empty",
    "refusal",
    "prompt copied",
    "form without content",
    "form with a dot",
    "longest",
    "shortest",
    "answer of another row",
    "several answers",
    "several completions",
    "call repeated",
)
"""Names of the lazy policies."""


@dataclass(frozen=True, slots=True)
class LazyCompletion:
    """Stores what a lazy policy writes for one problem."""

    policy: str
    """One of `POLICIES`."""
    text: str
    num_tokens: int
    """Assumed number of tokens."""
    needs_gold: bool = False
    """Whether the text contains the reference answer, which a policy could only write by luck."""


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    mark: bool = False
    code: bool = False

    @property
    def is_field(self) -> bool:
        return not self.mark and bool(self.text.strip())

    def filled(self, content: str) -> str:
        """Return the content with the white space that surrounds this piece."""
        body = self.text.strip()
        before, _, after = self.text.partition(body)
        return f"{before}{content}{after}"


def form_of(text: str) -> tuple[str, ...]:
    r"""Return the marks of a completion: its tags, fences and boxes, in order.

    >>> form_of("<think>so</think> \\boxed{\\frac{1}{2}}")
    ('<think>', '</think>', '\\boxed{', '}')
    """
    return tuple(piece.text for piece in _pieces(text) if piece.mark)


def without_form(text: str) -> str:
    """Return the contents of all fields, separated by spaces.

    >>> without_form("<think>so</think><answer>7</answer>")
    'so 7'
    """
    return " ".join(piece.text.strip() for piece in _pieces(text) if piece.is_field)


def padded(text: str, num_tokens: int) -> str:
    """Return the text with a longer first field, as if a policy had thought for some time.

    A text with a single field is returned unchanged, because this field is the answer.

    Args:
        text: A reference answer.
        num_tokens: Number of tokens that the text should have. The text is not shortened.
    """
    more = min(num_tokens * CHARACTERS_PER_TOKEN, LONGEST) - len(text)
    if len(_fields(text)) < 2 or more <= 0:
        return text
    words = (_WORDS * ceil(more / len(_WORDS)))[:more].rstrip()
    return _refilled(text, lambda place, piece: piece.text.strip() + ("" if place else f" {words}"))


def shell_of(gold: str) -> str:
    """Return the form of a reference answer without an answer. Empty: it has no form.

    >>> shell_of("<think>so</think><answer>7</answer>")
    '<think>.</think><answer>.</answer>'
    """
    return _refilled(gold, _dot) if form_of(gold) else ""


def in_place_of(gold: str, other: str) -> str:
    """Return the reference answer of another row as a wrong answer of this row.

    If both are programs with functions, the other's last function gets this row's name, which the
    prompt usually states. Otherwise the text is unchanged.

    Args:
        gold: The row's own reference answer.
        other: The reference answer of another row.
    """
    ours, theirs = _fields(gold), _fields(other)
    if not (ours and theirs and ours[-1].code and theirs[-1].code):
        return other
    wanted, named = (_FUNCTION.findall(fields[-1].text) for fields in (ours, theirs))
    if not (wanted and named):
        return other
    return re.sub(rf"\b{named[-1]}\b", wanted[-1], other)


def lazy_completions(
    task: Task, problem: Problem, *, others: Sequence[str], budget: int
) -> list[LazyCompletion]:
    """Return what each lazy policy writes for a problem. A policy that is not defined is left out.

    Args:
        task: The task, which writes reference answers and a bad completion.
        problem: A problem with a reference answer.
        others: Reference answers of other problems that are wrong here. At least one.
        budget: Maximum number of tokens in a completion.
    """
    gold = task.gold_completion(problem.reference) or ""
    found = {
        "empty": "",
        "refusal": task.bad_completion,
        "prompt copied": problem.prompt[-1]["content"] if problem.prompt else None,
        **_shells(gold, min(others, key=len)),
        "answer of another row": others[0],
    }
    hedged = {
        "several answers": _several_answers(gold, others),
        "several completions": "\n".join((others[0], gold, others[-1])),
        "call repeated": _repeated_call(gold),
    }
    lazy = [LazyCompletion(n, *_measured(n, t, budget)) for n, t in found.items() if t is not None]
    return lazy + [
        LazyCompletion(name, *_measured(name, text, budget), needs_gold=True)
        for name, text in hedged.items()
        if text is not None
    ]


def tokens_in(text: str) -> int:
    """Return the assumed number of tokens in a text, with the end-of-sequence token."""
    return 1 + ceil(len(text) / CHARACTERS_PER_TOKEN)


def _measured(name: str, text: str, budget: int) -> tuple[str, int]:
    if name == "longest":
        return text, budget
    return text[: budget * CHARACTERS_PER_TOKEN], min(tokens_in(text), budget)


def _shells(gold: str, shortest: str) -> dict[str, str]:
    """Return the texts of the policies that fill a form."""
    last = len(_fields(shortest)) - 1
    found = {
        "longest": padded(shell_of(gold), LONGEST) or _WORDS * 100,
        "shortest": _refilled(
            shortest,
            lambda place, piece: piece.text.strip() if place == last else _dot(place, piece),
        ),
    }
    if form_of(gold):
        found["form without content"] = _refilled(gold, lambda _, __: "")
        found["form with a dot"] = shell_of(gold)
    return found


def _dot(_place: int, piece: _Piece) -> str:
    return _stub(piece.text) if piece.code else _NOTHING


def _stub(program: str) -> str:
    """Return a program that defines the same functions and methods, which do nothing."""
    lines: list[str] = []
    in_class = False
    for line in program.splitlines():
        found = _DEFINITION.match(line)
        if found is None or (found["inside"] and not (in_class and found["kind"] == "def")):
            continue
        if not found["inside"]:
            in_class = found["kind"] == "class"
        name, indent = found["name"], found["inside"] or ""
        is_class = found["kind"] == "class"
        lines.append(f"class {name}:\n    pass" if is_class else f"{indent}def {name}(*_): pass")
    return "\n".join(lines) or _NO_PROGRAM


def _several_answers(gold: str, others: Sequence[str]) -> str | None:
    """Return the answer between two others in the last field. None: a program, or no field."""
    fields = [_fields(text) for text in (others[0], gold, others[-1])]
    if any(not each or each[-1].code for each in fields):
        return None
    answers = " or ".join(each[-1].text.strip() for each in fields)
    last = len(fields[1]) - 1
    return _refilled(gold, lambda place, piece: answers if place == last else piece.text.strip())


def _repeated_call(gold: str) -> str | None:
    head, opened, rest = gold.partition("<tool_call>")
    call, closed, tail = rest.partition("</tool_call>")
    if not (opened and closed):
        return None
    return f"{head}{opened}{call.rstrip() * _ROUNDS}\n{closed}{tail}"


def _fields(text: str) -> list[_Piece]:
    return [piece for piece in _pieces(text) if piece.is_field]


def _refilled(text: str, content: Callable[[int, _Piece], str]) -> str:
    """Return the text with other contents. `content` gets the index of a field and the field."""
    written: list[str] = []
    place = 0
    for piece in _pieces(text):
        written.append(piece.filled(content(place, piece)) if piece.is_field else piece.text)
        place += piece.is_field
    return "".join(written)


def _pieces(text: str) -> Iterator[_Piece]:
    """Yield marks and the texts between them. A closed fence or box is one text."""
    start = 0
    while mark := _MARK.search(text, start):
        yield _Piece(text[start : mark.start()])
        yield _Piece(mark.group(), mark=True)
        start = mark.end()
        end = _end_of_inside(text, mark)
        if end is not None:
            closing = "```" if mark.group().startswith("```") else "}"
            yield _Piece(text[start:end], code=closing == "```")
            yield _Piece(closing, mark=True)
            start = end + len(closing)
    yield _Piece(text[start:])


def _end_of_inside(text: str, mark: re.Match[str]) -> int | None:
    """Return where a fence or a box closes, or None for a tag or if it does not close."""
    if mark.group().startswith("```"):
        end = text.find("```", mark.end())
        return None if end < 0 else end
    if mark.group() != "\\boxed{":
        return None
    depth = 1
    for place in range(mark.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    return None
