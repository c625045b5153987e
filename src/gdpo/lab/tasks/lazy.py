r"""Writes lazy completions: texts that a policy could write without solving the problem.

Lazy completions keep the form of a reference answer: its tags (`<answer>`), code fences and
`\boxed{}`. The text between these marks is a field.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from gdpo.lab.tasks import Problem, Task
from gdpo.rewards.reward import as_messages
from gdpo.rewards.text import content_text

CHARACTERS_PER_TOKEN = 4
"""Assumed number of characters in a token, because no tokenizer is loaded."""

_MARK = re.compile(r"(</?[A-Za-z_][\w-]*>|```\w*|\\boxed\{|(?<=\.)\})")
_BOXED = re.compile(r"\\boxed\{(?:[^{}]|\{[^{}]*\})*\}")
_WORDS = "and then we look at it once more "
_LONGEST = 4000
"""Maximum number of characters, so that scoring stays fast."""


def lazy_completions(
    task: Task, problem: Problem, *, others: Sequence[str], budget: int
) -> Mapping[str, str]:
    r"""Return what each lazy policy writes for a problem with a reference answer, by description.

    `others` are reference answers of other problems, at least one, and `budget` is the token limit.

    Examples:
        >>> from gdpo.lab.tasks import resolve_task
        >>> problem = Problem([{"role": "user", "content": "2+3?"}], {"answer": "5"})
        >>> texts = lazy_completions(resolve_task("gsm8k"), problem, others=["x", "y"], budget=9)
        >>> texts["empty"], texts["the prompt copied"]
        ('', '2+3?')
    """
    gold = task.gold_completion(problem.reference) or ""
    form = with_fields(gold, lambda _: ".")
    size = min(budget * CHARACTERS_PER_TOKEN, _LONGEST)
    long = (_WORDS * (size // len(_WORDS) + 1))[: max(0, size - len(form))]
    asked = as_messages(problem.prompt)[-1] if problem.prompt else {}
    texts = {
        "empty": "",
        "the prompt copied": content_text(asked.get("content")),
        "the form without an answer": form,
        "as long as possible": form.replace(".", f".{long}", 1) if "." in form else long,
        "another row's answer": others[0],
        "several answers": " or ".join(others),
    }
    return {name: text for name, text in texts.items() if text.strip() != gold.strip()}


def with_fields(text: str, content: Callable[[str], str]) -> str:
    r"""Return the text with the contents of its fields replaced. Empty if the text has no marks.

    >>> with_fields("<think>so</think> \\boxed{\\frac{1}{2}}", lambda _: ".")
    '<think>.</think> \\boxed{.}'
    """
    pieces = _MARK.split(_BOXED.sub(r"\\boxed{.}", text))
    if len(pieces) == 1:
        return ""
    for place in range(0, len(pieces), 2):
        field = pieces[place].strip()
        if field:
            pieces[place] = pieces[place].replace(field, content(field), 1)
    return "".join(pieces)
