r"""Defines the task of GSM8K: solve a grade-school maths problem, and answer with an integer.

A completion consists of `<think>…</think>`, then `<answer>…</answer>`. The rewards, in order, are
each 0 or 1:

- **correctness**: the answer equals the row's number.
- **integer**: the answer is written as an integer.
- **format**: the completion is one thinking field, then one answer field, with no text outside
  them. A `<think>` that the chat template has opened counts.

The answer is the text after the last `<answer>`, up to the next `</answer>` or the end. Without
`<answer>`, it is the whole completion, so that a correct number is rewarded before the policy has
learned the format.

`gsm8k` differs from the published code (`trl-GDPO/open-r1/src/open_r1/gsm8k.py` in NVlabs/GDPO) in
the following points. `gsm8k_compatible` gives exactly its scores, except that a `<think>` which the
chat template has opened counts. The published format is then always 0.

1. Correctness compares numbers: "2,125", "$2125", "2125€", "2125.0", "+2125", "02125", "2125." and
   "2125%" all equal "2125". A minus sign may be a long dash ("−" or "–"). The answer must contain
   only the number: "72 dollars", "**72**", "\boxed{72}", fractions, powers of ten and words are not
   numbers, and are correct only if identical to the row's answer. In the published code, only
   identical text is correct.
2. Integer allows a sign, commas between groups of three digits, and leading zeros ("00" is an
   integer). Only the digits 0 to 9 are recognized. The published code uses `str.isdigit`, which
   rejects signs and commas, and accepts superscripts and digits of every script.
3. Format allows any whitespace around and between the two fields, and requires visible content in
   both fields (zero-width characters do not count). The thinking ends at the first `</think>` and
   may contain any tag. The answer must not contain a tag. The published code requires exactly one
   newline between the fields, accepts empty fields, and gives 0 for an `<answer>` inside the
   thinking or a space before or after the fields.
4. A row without "####" raises a DataError. In the published code, no answer to it is correct.
5. The system prompt is worded differently. `gsm8k_compatible` uses the published prompt verbatim
   (Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES).

The GSM8K benchmark also reports **flexible** (`flexible_reward`), which is not used for training.
"""

import re
from dataclasses import replace
from decimal import Decimal
from functools import partial

from gdpo.errors import DataError
from gdpo.lab.tasks.rows import text_at
from gdpo.rewards import Example, Reference
from gdpo.rewards.maths import boxed
from gdpo.rewards.reward import binary, examples_of
from gdpo.rewards.task import Problem, Row, Task
from gdpo.rewards.text import answer_part, holds_something, split_thinking

_SYSTEM = """\
You solve math problems with care. Work through each problem step by step first, and only then \
give the final answer as an integer.

Write exactly this:
<think>every step of your reasoning and calculation</think>
<answer>the final answer, one integer and nothing else</answer>

The reasoning always goes inside <think>, and the answer always follows it inside <answer>."""

_PUBLISHED_SYSTEM = """
You are a helpful AI assistant.

For every request, you should carefully think through the math problem step by step, then provide \
the fianl answer in integer format.

Steps for Each Request:
1. Think: Provide detailed, step-by-step reasoning, calculations, or derivations.
2. Produce Final Answer: After step-by-step reasoning, output the final answer in integer format.

Output Format:
<think>Your thoughts and reasoning</think>
<answer>Final answer in integer format</answer>

Important Notes:
1. You must include your reasoning steps inside <think>.
2. You must always output the Final Answer within <answer> after the reasoning steps is done.
3. You should consistently work through the solution step by step before giving the final answer.
4. The final answer can only be an integer.
"""

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"[+\-−–]?{_DIGITS}")
_NUMBER = re.compile(
    rf"(?P<sign>[+\-−–]?)\s*+[$€£]?\s*+(?P<digits>{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)\s*[%$€£]?\.?"
)
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![0-9])(?:(?<![\w)\]}}])(?P<sign>[\-−–]))?(?:\\?[$€£])?"
    rf"(?P<digits>{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
)
_THIN_SPACE = re.compile(r"\\[,!;]")

_ANSWER_TAG = re.compile(r"</?(?:think|answer)>")


def _answer(completion: str) -> str:
    return completion.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _number(text: str) -> Decimal | None:
    return _decimal(_NUMBER.fullmatch(text))


def _decimal(match: re.Match[str] | None) -> Decimal | None:
    if match is None:
        return None
    # Without an exponent, a Decimal needs memory only for its digits. The sign is added to the
    # text, because negating the Decimal would round to 28 digits.
    sign = "-" if match["sign"] in ("-", "−", "–") else ""
    return Decimal(sign + match["digits"].replace(",", ""))


def _correctness(completion: str, reference: Reference) -> float:
    answer, gold = _answer(completion), reference["answer"]
    number = _number(answer)
    return float(answer == gold or (number is not None and number == _number(gold)))


def _integer(completion: str, _reference: Reference) -> float:
    return float(_INTEGER.fullmatch(_answer(completion)) is not None)


def _format(completion: str, _reference: Reference) -> float:
    thinking, rest = split_thinking(completion)
    rest = rest.strip()
    answer = rest.removeprefix("<answer>").removesuffix("</answer>")
    enclosed = len(rest) - len(answer) == len("<answer></answer>")
    held = thinking is not None and holds_something(thinking) and holds_something(answer)
    return float(enclosed and held and not _ANSWER_TAG.search(answer))


def _compatible_correctness(completion: str, reference: Reference) -> float:
    return float(_answer(completion) == reference["answer"])


def _compatible_integer(completion: str, _reference: Reference) -> float:
    return float(_answer(completion).isdigit())


_COMPATIBLE_FORMAT = re.compile(r"<think>.*?</think>\n<answer>.*?</answer>\n?", re.DOTALL)


def _compatible_format(completion: str, _reference: Reference) -> float:
    once = completion.count("<answer>") == completion.count("</answer>") == 1
    return float(once and _COMPATIBLE_FORMAT.fullmatch(completion) is not None)


def _flexible(completion: str, reference: Reference) -> float:
    if _correctness(completion, reference):
        return 1.0
    said = answer_part(completion)
    tagged = _answer(said) if "<answer>" in said else ""
    numbers = (_last_number(place) for place in (tagged, boxed(said) or "", said))
    number = next((number for number in numbers if number is not None), None)
    return float(number is not None and number == _number(reference["answer"]))


def _last_number(text: str) -> Decimal | None:
    """Return the last number in a text, in plain or LaTeX notation, or None."""
    found = None
    for match in _NUMBER_IN_TEXT.finditer(_THIN_SPACE.sub("", text.replace("{,}", ","))):
        found = match
    return _decimal(found)


def _read_row(row: Row, *, system: str = _SYSTEM) -> Problem:
    answer = text_at(row, "answer")
    gold = answer.partition("####")[2].partition("####")[0].strip()
    if not gold:
        raise DataError(
            "column 'answer' must end with '####' and the final answer, as in '… #### 72'. "
            f"It ends with {answer[-40:]!r}"
        )
    prompt = [
        {"role": "system", "content": system},
        {"role": "user", "content": text_at(row, "question")},
    ]
    return Problem(prompt, {"answer": gold})


def _gold_completion(reference: Reference) -> str:
    return f"<think>worked out</think>\n<answer>{reference['answer']}</answer>"


_72, _COMMA = {"answer": "72"}, {"answer": "2,125"}

correctness_reward = binary(
    "correctness",
    _correctness,
    *examples_of(
        _72,
        {
            "<think>a</think>\n<answer>72</answer>": 1.0,
            "<answer>$72.00</answer>": 1.0,
            "72": 1.0,
            "<answer>144/2</answer>": 0.0,  # not evaluated
            "<answer>7,2</answer>": 0.0,
            "<answer>72 eggs</answer>": 0.0,
            "<answer>72</answer> or <answer>73</answer>": 0.0,  # the last one counts
            "": 0.0,
        },
    ),
    Example("<answer>2125</answer>", _COMMA, 1.0),
)
"""1 if the answer equals the reference answer, otherwise 0."""

integer_reward = binary(
    "integer",
    _integer,
    *examples_of(
        _72,
        {
            "<answer>72</answer>": 1.0,
            "<answer>-7</answer>": 1.0,
            "<answer>1,080</answer>": 1.0,
            "<answer>72.0</answer>": 0.0,
            "<answer>$72</answer>": 0.0,
            "<answer>7²</answer>": 0.0,
            "so it is 72": 0.0,
        },
    ),
)
"""1 if the answer is written as an integer (even a wrong one), otherwise 0."""

format_reward = binary(
    "format",
    _format,
    *examples_of(
        _72,
        {
            "<think>a</think>\n<answer>72</answer>": 1.0,
            "<think>an <answer> follows</think> <answer>b</answer>\n": 1.0,
            "<think>a</think>\n<answer> </answer>": 0.0,  # empty
            "<think>a</think>\n<answer>1</answer>\n<answer>2</answer>": 0.0,
            "<think>a</think>\nso\n<answer>72</answer>": 0.0,  # text outside
            "<answer>72</answer>": 0.0,
            "<think>a</think>": 0.0,
            "a</think><answer>72</answer>": 0.0,
        },
    ),
    scope="opened",
)
"""1 if the completion has the required format (even with a wrong answer), otherwise 0."""

flexible_reward = binary(
    "flexible",
    _flexible,
    *examples_of(
        _72,
        {
            "<think>a</think>\n<answer>72</answer>": 1.0,
            "<answer>72 eggs</answer>": 1.0,
            "<answer></answer> so it is 72": 1.0,
            "60 + 12 = 72. She has **72** eggs.": 1.0,
            "<answer>71</answer>, or 72": 0.0,  # the answer tag takes precedence
            r"72, or \boxed{71}": 0.0,
            "72 eggs in 3 boxes": 0.0,  # the last number
            "<think>72</think>": 0.0,
            "- 72 eggs": 1.0,
            "60, 72": 1.0,
            "it is -72": 0.0,
            "seventy-two": 0.0,
        },
    ),
    Example(r"That is \boxed{\$2{,}125}, of which she keeps 3.", _COMMA, 1.0),
)
"""1 if the last number in the completion equals the reference answer, otherwise 0.

This metric is for the benchmark, not for recipes. The last number is searched for in the last
`<answer>`, then in the last box, and then in the text after the thinking. In 144/2, it is 2. This
metric also accepts every answer that the correctness reward accepts. In contrast, lm-eval's
flexible-extract filter for `gsm8k` always uses the last number in the text."""

TASK = Task(
    name="gsm8k",
    columns=(("question", "answer"),),
    read_row=_read_row,
    rewards=(correctness_reward, integer_reward, format_reward),
    gold_completion=_gold_completion,
    bad_completion="I would rather not say.",
)
"""GSM8K task with rewards that compare numbers."""

COMPATIBLE = replace(
    TASK,
    name="gsm8k_compatible",
    is_published=True,
    read_row=partial(_read_row, system=_PUBLISHED_SYSTEM),
    rewards=(
        binary(
            "correctness",
            _compatible_correctness,
            *examples_of(_72, {"<answer> 72 </answer>": 1.0, "<answer>72.0</answer>": 0.0}),
            Example("<answer>2125</answer>", _COMMA, 0.0),
        ),
        binary(
            "integer",
            _compatible_integer,
            *examples_of(
                _72,
                {
                    "<answer>72</answer>": 1.0,
                    "<answer>7²</answer>": 1.0,
                    "<answer>-7</answer>": 0.0,
                },
            ),
            Example("<answer>2,125</answer>", _COMMA, 0.0),
        ),
        binary(
            "format",
            _compatible_format,
            *examples_of(
                _72,
                {
                    "<think>a</think>\n<answer>72</answer>": 1.0,
                    "<think></think>\n<answer></answer>": 1.0,
                    "<think>a</think> <answer>72</answer>": 0.0,
                    "<think>an <answer> follows</think>\n<answer>b</answer>": 0.0,
                },
            ),
            scope="opened",
        ),
    ),
)
"""GSM8K task with the published prompt and the published reward values."""
