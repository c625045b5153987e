r"""The words after a number: a unit is dropped, a word that changes the value never is.

3 \text{ km} is 3, 3 \text{ million} is 3000000, 3 \text{ percent} is 3\%; 3 \text{ mod 7} and
3\mathrm{i} are left as they are.
"""

import re

SPACE = r"(?:\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s)"
"""One space, as LaTeX may write it."""

TEXT = r"\\(?:text(?:rm|normal|bf|it)?|mbox|mathrm)\s*"
"""What makes a group a text; its brace follows."""

_PIECE = rf"{TEXT}\{{[^{{}}]*\}}(?:\s*\^\s*(?:[0-9]|\{{-?[0-9]\}}))?"
_TAIL = re.compile(rf"{SPACE}*{_PIECE}(?:(?:{SPACE}|/|\\cdot\s*)*{_PIECE})*$")
_IN_TEXT = re.compile(rf"{TEXT}\{{([^{{}}]*)\}}")
_NO_NUMBER = re.compile(r"(?:[-+*/=^_,<>(&]|\\(?:cdot|times|div|[lg]eq?|neq?|in|pm|mp))$")
_POWER = re.compile(r"(?<=[a-zA-Z])\^?-?[1-4](?![0-9])")
_SPELT = re.compile(r"[A-Za-zµμΩ\s'/()^·-]*")

_SCALES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_PERCENT = ("percent", "per cent", "pct", "percentage")
_MARKS = {"squared": "^2", "cubed": "^3", "factorial": "!"}
_BARE = re.compile(rf"(?<=[0-9}}])\s+((?:{'|'.join(_SCALES)})(?:\s+[a-z]+)*|{'|'.join(_PERCENT)})$")

_TWO_LETTERS = frozenset(
    re.findall(
        r"\w+",
        """
        mm cm dm km nm um ft in yd mi lb oz mg kg ml cl dl hr sq cu pt qt ha am pm hz kw mw kj ev kv
        mv ma pa cc st nd rd th rs ms ns kn cd
        """,
    )
)
_ONE_LETTER = frozenset("acfghjklmnsvw")
"""Part of a unit only beside other words: alone, a letter may be a variable, or e, or i."""

_CHANGING = frozenset(
    re.findall(
        r"\w+",
        """
        hundred thousand million billion trillion dozen
        hundreds thousands millions billions trillions dozens gross score
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
        fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
        ninety half third fourth fifth sixth seventh eighth ninth tenth hundredth thousandth
        millionth halves thirds fourths fifths sixths sevenths eighths ninths tenths hundredths
        thousandths millionths billionth billionths quarter quarters double triple twice thrice
        percent pct percentage permille mille
        mod modulo modulus rem remainder factorial squared cubed choose plus minus negative below
        over divided multiplied power inverse reciprocal
        sqrt log ln sin cos tan cot exp gcd lcm
        inf infinity infinite pi tau phi theta alpha beta gamma delta lambda omega abc xyz
        to than least most and or not no nor none if but is isn was are maybe rather wrong false
        incorrect except fold basis
        """,
    )
)
r"""Words that make another number, a condition or a choice of what stands before them."""


def read_words(text: str) -> str:
    """Return a number without its unit, and with what other words after it make of it."""
    text = _BARE.sub(r"\\text{\1}", text)
    tail = _TAIL.search(text)
    if not tail or not re.search(r"[0-9]", text[: tail.start()]):
        return text
    number = text[: tail.start()].strip()
    phrase = _POWER.sub("", " ".join(_IN_TEXT.findall(tail.group())).replace(".", ""))
    words = re.findall(r"[^\s/()^·'-]+", phrase.lower())
    factor = 1
    while words and words[0] in _SCALES:
        factor *= _SCALES[words.pop(0)]
    if " ".join(words) in _PERCENT and factor == 1:
        return rf"{number}\%"
    if len(words) == 1 and words[0] in _MARKS and number.isdigit() and factor == 1:
        return number + _MARKS[words[0]]
    unit = bool(_SPELT.fullmatch(phrase)) and _is_unit(words, number, tail.group())
    if _NO_NUMBER.search(number) or not (unit or (factor > 1 and not words)):
        return text
    return rf"{number}\times {factor}" if factor > 1 else number


def _is_unit(words: list[str], number: str, tail: str) -> bool:
    """Whether words name what is counted."""
    if words[:1] == ["base"]:
        return len(words) == 2
    if re.search(r"\\circ\s*\}?$", number) and words in (["c"], ["f"], ["k"]):
        return True
    named = "/" in tail or "-" in tail or any(len(word) > 1 for word in words)
    return bool(words) and all(
        _is_part(word, alone=len(words) == 1, first=i == 0, named=named)
        for i, word in enumerate(words)
    )


def _is_part(word: str, *, alone: bool, first: bool, named: bool) -> bool:
    if word in ("squared", "cubed"):
        return not first
    if word in _CHANGING:
        return False
    if len(word) == 1:
        return named and not alone and word in _ONE_LETTER
    return len(word) > 2 or not alone or word in _TWO_LETTERS
