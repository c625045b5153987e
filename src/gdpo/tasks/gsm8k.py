r"""Grade-school maths (GSM8K): think, then answer with an integer.

A completion is `<think>…</think>`, then `<answer>…</answer>`. Rewards, in this order, each in {0,
1}:

- **correctness**: the answer is the number of the row;
- **integer**: the answer is written as an integer;
- **format**: the thinking and the answer are there, in this order, once each, around nothing else.

The answer is what stands after the last `<answer>`, up to the next `</answer>` or the end; without
the tag it is the whole completion, so that a right number is worth something before the format is
learned.

The task `gsm8k` departs from the published code (`trl-GDPO/open-r1/src/open_r1/gsm8k.py` in
NVlabs/GDPO) in the following; `gsm8k_compatible` gives its numbers to the last digit.

1. Correctness compares numbers: "2,125", "$2125", "2125€", "2125.0", "+2125", "02125" and "2125."
   all equal "2125", and so does "2125%". A minus may be a long one ("−" or "–"). The answer is the
   number and nothing else, as the prompt asks: "72 dollars", "**72**" and "\boxed{72}" are no
   numbers. Fractions, powers of ten and words are none either (an answer is to be worked out). What
   is no number counts only where it equals the row's answer letter by letter. Published: equal text
   only.
2. Integer allows a sign, and commas between groups of three digits; digits are 0 to 9, and leading
   zeros count ("00" is an integer). Published: `str.isdigit`, which refuses signs and commas, and
   takes digits of every script, superscripts too.
3. Format allows any whitespace around and between the two fields, wants both to hold something that
   can be seen (characters of no width are nothing), ends the thinking at the first `</think>`, does
   not care what is named inside it, and allows no tag in the answer. Published: exactly one newline
   between them, empty fields pass, an `<answer>` named in the thinking gives 0, and so does a space
   before or after.
4. A row without "####" is a DataError. Published: it can never be answered correctly.
5. The system prompt says the same in other words; `gsm8k_compatible` has the published one, to the
   letter (Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES).

As a benchmark GSM8K has one measure more, which trains nothing: **flexible** (`flexible_reward`).
"""

import re
from dataclasses import replace
from decimal import Decimal
from functools import partial

from gdpo.errors import DataError
from gdpo.rewards import Example, Reference
from gdpo.rewards.maths import boxed
from gdpo.rewards.reward import binary
from gdpo.tasks._thinking import holds_something, split_thinking
from gdpo.tasks.rows import text_at
from gdpo.tasks.task import Problem, Row, Task

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
_SEARCHED = 100_000
"""Characters at the end of a completion in which the flexible measure looks for an answer."""

_ANSWER_TAG = re.compile(r"</?(?:think|answer)>")


def _answer(completion: str) -> str:
    return completion.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _number(text: str) -> Decimal | None:
    """The number that a text is, or None."""
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    # Without a power of ten in it, a Decimal costs no more than its digits; its sign is set in the
    # text because arithmetic would round to 28 digits.
    sign = "-" if match["sign"] in ("-", "−", "–") else ""
    return Decimal(sign + match["digits"].replace(",", ""))


def _correctness(completion: str, reference: Reference) -> float:
    """1 if the answer is the row's, as a number or letter by letter, else 0."""
    answer, gold = _answer(completion), reference["answer"]
    number = _number(answer)
    return float(answer == gold or (number is not None and number == _number(gold)))


def _integer(completion: str, _reference: Reference) -> float:
    """1 if the answer is written as an integer, else 0."""
    return float(_INTEGER.fullmatch(_answer(completion)) is not None)


def _format(completion: str, _reference: Reference) -> float:
    """1 if the completion is one closed thinking and one answer, else 0."""
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
    """1 if the answer is right, or the last number where it is looked for is the row's, else 0."""
    if _correctness(completion, reference):
        return 1.0
    _, thought, rest = completion.partition("</think>")
    said = (rest if thought else completion)[-_SEARCHED:]
    tagged = _answer(said) if "<answer>" in said else ""
    numbers = (_last_number(place) for place in (tagged, boxed(said) or "", said))
    number = next((number for number in numbers if number is not None), None)
    return float(number is not None and number == _number(reference["answer"]))


def _last_number(text: str) -> Decimal | None:
    """The last number in a text, as people and LaTeX write numbers."""
    found = None
    for match in _NUMBER_IN_TEXT.finditer(_THIN_SPACE.sub("", text.replace("{,}", ","))):
        found = match
    if found is None:
        return None
    sign = "-" if found["sign"] else ""
    return Decimal(sign + found["digits"].replace(",", ""))


def _read_row(row: Row, *, system: str = _SYSTEM) -> Problem:
    answer = text_at(row, "answer")
    gold = answer.partition("####")[2].partition("####")[0].strip()
    if not gold:
        raise DataError(
            "column 'answer' must end in '####' and the final answer, as in '… #### 72'; "
            f"it ends in {answer[-40:]!r}"
        )
    prompt = [
        {"role": "system", "content": system},
        {"role": "user", "content": text_at(row, "question")},
    ]
    return Problem(prompt, {"answer": gold}, answer=gold)


def _gold_completion(reference: Reference) -> str:
    return f"<think>worked out</think>\n<answer>{reference['answer']}</answer>"


_72, _COMMA = {"answer": "72"}, {"answer": "2,125"}

correctness_reward = binary(
    "correctness",
    _correctness,
    Example("<think>a</think>\n<answer>72</answer>", _72, 1.0),
    Example("<answer>$72.00</answer>", _72, 1.0),
    Example("<answer>2125</answer>", _COMMA, 1.0),
    Example("72", _72, 1.0),
    Example("<answer>144/2</answer>", _72, 0.0),  # not worked out
    Example("<answer>7,2</answer>", _72, 0.0),
    Example("<answer>72 eggs</answer>", _72, 0.0),
    Example("<answer>72</answer> or <answer>73</answer>", _72, 0.0),  # the last one counts
    Example("", _72, 0.0),
)
"""Binary."""

integer_reward = binary(
    "integer",
    _integer,
    Example("<answer>72</answer>", _72, 1.0),
    Example("<answer>-7</answer>", _72, 1.0),
    Example("<answer>1,080</answer>", _72, 1.0),
    Example("<answer>72.0</answer>", _72, 0.0),
    Example("<answer>$72</answer>", _72, 0.0),
    Example("<answer>7²</answer>", _72, 0.0),
    Example("so it is 72", _72, 0.0),
)
"""Binary. The right number or a wrong one: that is the correctness reward's."""

format_reward = binary(
    "format",
    _format,
    Example("<think>a</think>\n<answer>72</answer>", _72, 1.0),
    Example("<think>an <answer> follows</think> <answer>b</answer>\n", _72, 1.0),
    Example("<think>a</think>\n<answer> </answer>", _72, 0.0),  # empty
    Example("<think>a</think>\n<answer>1</answer>\n<answer>2</answer>", _72, 0.0),
    Example("<think>a</think>\nso\n<answer>72</answer>", _72, 0.0),  # text outside
    Example("<answer>72</answer>", _72, 0.0),
    Example("<think>a</think>", _72, 0.0),
)
"""Binary. What the answer says is not its concern."""

flexible_reward = binary(
    "flexible",
    _flexible,
    Example("<think>a</think>\n<answer>72</answer>", _72, 1.0),
    Example("<answer>72 eggs</answer>", _72, 1.0),
    Example("<answer></answer> so it is 72", _72, 1.0),
    Example(r"That is \boxed{\$2{,}125}, of which she keeps 3.", _COMMA, 1.0),
    Example("60 + 12 = 72. She has **72** eggs.", _72, 1.0),
    Example("<answer>71</answer>, or 72", _72, 0.0),  # what stands first in this list counts
    Example(r"72, or \boxed{71}", _72, 0.0),
    Example("72 eggs in 3 boxes", _72, 0.0),  # the last number
    Example("<think>72</think>", _72, 0.0),
    Example("- 72 eggs", _72, 1.0),
    Example("60, 72", _72, 1.0),
    Example("it is -72", _72, 0.0),
    Example("seventy-two", _72, 0.0),
)
"""Binary: a measure of the benchmark, and no reward of a recipe. The last number counts, whatever
stands around it (of 144/2 it is 2): of the last `<answer>` if it holds one, else of the last box,
else of the text after the thinking. What correctness takes is right here, too. In lm-eval the
filter flexible-extract of `gsm8k` takes the last number of the text always."""

TASK = Task(
    name="gsm8k",
    columns=(("question", "answer"),),
    read_row=_read_row,
    rewards=(correctness_reward, integer_reward, format_reward),
    gold_completion=_gold_completion,
    bad_completion="I would rather not say.",
)
"""GSM8K with rewards that compare numbers."""

COMPATIBLE = replace(
    TASK,
    name="gsm8k_compatible",
    read_row=partial(_read_row, system=_PUBLISHED_SYSTEM),
    rewards=(
        binary(
            "correctness",
            _compatible_correctness,
            Example("<answer> 72 </answer>", _72, 1.0),
            Example("<answer>72.0</answer>", _72, 0.0),
            Example("<answer>2125</answer>", _COMMA, 0.0),
        ),
        binary(
            "integer",
            _compatible_integer,
            Example("<answer>72</answer>", _72, 1.0),
            Example("<answer>7²</answer>", _72, 1.0),
            Example("<answer>-7</answer>", _72, 0.0),
            Example("<answer>2,125</answer>", _COMMA, 0.0),
        ),
        binary(
            "format",
            _compatible_format,
            Example("<think>a</think>\n<answer>72</answer>", _72, 1.0),
            Example("<think></think>\n<answer></answer>", _72, 1.0),
            Example("<think>a</think> <answer>72</answer>", _72, 0.0),
            Example("<think>an <answer> follows</think>\n<answer>b</answer>", _72, 0.0),
        ),
    ),
)
"""GSM8K with the published prompt and numbers."""
