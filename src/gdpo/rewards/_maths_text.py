r"""What an answer says, in the LaTeX that math-verify reads: no style, no unit, one notation.

Only the text is looked at here; `_math_verify` reads it and compares.
"""

import re

from gdpo.rewards._maths_units import SPACE, TEXT, read_words

_CHARACTERS = str.maketrans(
    dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | dict.fromkeys("€£¥₹")
    | {"−": "-", "°": r"^\circ ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot "}
    | {"÷": "/", "∞": r"\infty ", "∅": r"\emptyset ", "∪": r"\cup ", "∩": r"\cap "}
    | {"²": "^2", "³": "^3", "√": r"\sqrt "}
)
_DASH = re.compile(r"(?<![0-9])(?<![0-9] )[–—]|[–—](?! ?[0-9])")
"""A long dash is a minus, but not between two digits: 2–3 is a range."""

_AROUND = re.compile(r"\\?\$|^\\[(\[]|\\[)\]]$")
_EDGE = re.compile(rf"^{SPACE}+|(?:{SPACE}|[.,;])+$")
_SWITCH = re.compile(
    r"\\(?:displaystyle|textstyle|(?:foot|script|normal)size|tiny|small|[lL]arge|LARGE|huge|Huge"
    r"|bfseries|boldmath)(?![a-zA-Z])\s*|\\(?:text)?color\s*\{[^{}]*\}"
)
_OLD_FONT = re.compile(r"(?:\{\s*\\(bf|rm|it|sf)(?![a-zA-Z])\s*|\\(bf|rm|it|sf)\s*\{)")
_FONT = re.compile(r"\\(?:boldsymbol|bm|math(?:bf|it|sf|normal)|textbf|underline)\s*\{")
_WORD = re.compile(r"[\sA-Za-z.]*[A-Za-z]{2}[\sA-Za-z.]*")
_NUMERAL_IN_TEXT = re.compile(rf"{TEXT}\{{\s*([-+]?[0-9][0-9.,/]*)\s*\}}")

_LABEL = re.compile(
    rf"(?:{TEXT}\{{\s*(?:\(([A-J])\)|([A-J])[).:])\s*\}}|\(([A-J])\)(?=\s+(?:[0-9]|\\(?:[dt]?frac|sqrt|\$))))"
    rf"{SPACE}*(.*)",
    re.DOTALL,
)
_CHOICE = re.compile(rf"(?:{TEXT}\{{)?\s*\(?([A-J])\)?\s*\}}?")

_DIGITS_IN_BRACES = re.compile(r"(?<![0-9A-Za-z}_^\]])(?:\{[0-9]+\})+(?!\{)")
_DIGITS_APART = re.compile(rf"(?<![_^0-9.])[0-9]+(?:\.[0-9]+)?{SPACE}+[0-9]")
_THOUSANDS = re.compile(
    rf"(?<![_^0-9.])[0-9]{{1,3}}(?:(?:,\\!|{SPACE}{{1,3}})[0-9]{{3}})+(?![0-9])"
)
_RECURRING = re.compile(
    r"(?<![0-9.])([0-9]{0,50})\.([0-9]{0,50})"
    r"(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,50})\}|([0-9]))|\(([0-9]{1,50})\))(?![0-9])"
)
_NOTATION = (
    (re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}"), ""),
    (re.compile(r"(?<=\{)\{d\}"), "d"),
    (re.compile(r"\\imath(?![a-zA-Z])"), "i "),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\^?\\degrees?(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*(?:e|\\mathrm\s*\{e\})\s*\})"), r"\\ln "),
    # 5^{\text{th}}
    (re.compile(rf"\^\s*\{{?\s*{TEXT}\{{(?:st|nd|rd|th)\}}\s*\}}?$"), ""),
    (re.compile(r"\\[dtc]?frac\s+([0-9])\s+([0-9])"), r"\\frac{\1}{\2}"),
    # 5 1/2
    (
        re.compile(rf"(?<![_^0-9./])([0-9]+){SPACE}+([0-9]+)\s*/\s*([0-9]+)(?![0-9./])"),
        r"\1\\frac{\2}{\3}",
    ),
    # 1./3: a bare point after a whole number within a formula
    (re.compile(r"(?<![0-9.,])([0-9]+)\.(?=\s*(?:[-+*/)}]|\\(?:times|cdot)(?![a-zA-Z])))"), r"\1"),
    # 2.5e-3 and 1e3; 2e-3 is Euler's number twice, less 3
    (
        re.compile(
            r"(?<![\w.\\])((?:[0-9]+\.[0-9]*|\.[0-9]+)(?=[eE])|[0-9]+(?=E|e[0-9]))"
            r"[eE]([-+]?[0-9]+)(?![\w.])"
        ),
        r"(\1\\times10^{\2})",
    ),
)

_POWER_OF_I = re.compile(r"([0-9A-Za-z)}]\s*)?(?<!\\)I(?=\s*\^)")
_ONE_LETTER = re.compile(rf"(?:{TEXT}|\\mathit\s*)\{{\s*([A-Za-z])\s*\}}")


def clean(answer: str) -> str:
    """Return an answer as math-verify reads it; empty where it cannot be one answer."""
    bare = _AROUND.sub("", _DASH.sub("-", answer.strip()).translate(_CHARACTERS).strip())
    bare = _EDGE.sub("", _without_style(_EDGE.sub("", bare)))
    bare = _EDGE.sub("", _without_braces(bare).removeprefix(r"\approx"))
    for pattern, replacement in _NOTATION:
        bare = pattern.sub(replacement, bare)
    bare = _DIGITS_IN_BRACES.sub(lambda match: re.sub(r"[{}]", "", match.group()), bare)
    bare = _RECURRING.sub(_as_fraction, bare)
    bare = _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match.group()), bare)
    return "" if _DIGITS_APART.search(bare) else _with_letters(read_words(bare))


def without_label(answer: str) -> tuple[str | None, str]:
    r"""Return the letter of a choice and what it stands before: \textbf{(B)}\ 12 is B and 12."""
    bare = _EDGE.sub("", _AROUND.sub("", answer.strip()))
    if match := _CHOICE.fullmatch(bare):
        return match[1], ""
    match = _LABEL.fullmatch(bare)
    return (match[1] or match[2] or match[3], match[4]) if match else (None, answer)


def end_of_group(text: str, start: int) -> int:
    """Return the place of the brace that closes what is open at `start`, or -1."""
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return start + match.start()
    return -1


def _without_style(text: str) -> str:
    r"""Without sizes, colours and fonts; \mathbf{cm} stays a word."""
    text = _SWITCH.sub("", text)
    text = _OLD_FONT.sub(lambda match: rf"\math{match[1] or match[2]}{{", text)
    place = 0
    while match := _FONT.search(text, place):
        end = end_of_group(text, match.end())
        inner = text[match.end() : end]
        place = match.start()
        if end < 0 or _WORD.fullmatch(inner):
            place = match.end()
        else:
            text = text[:place] + inner + text[end + 1 :]
    return _NUMERAL_IN_TEXT.sub(r"\1", text)


def _without_braces(text: str) -> str:
    while text.startswith("{") and end_of_group(text, 1) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _as_fraction(match: re.Match[str]) -> str:
    r"""0.1\overline{6} as \frac{15}{90}."""
    whole, fixed = match[1], match[2]
    recurring = match[3] or match[4] or match[5]
    over = int(whole + fixed + recurring) - int(whole + fixed or "0")
    return rf"\frac{{{over}}}{{{10 ** len(fixed) * (10 ** len(recurring) - 1)}}}"


def _with_letters(text: str) -> str:
    r"""One letter in \mathrm or \text is the letter; math-verify reads I^2 as I, but not (I)^2."""
    text = _ONE_LETTER.sub(r" \1", text).strip()
    return _POWER_OF_I.sub(lambda match: rf"{match[1]}\cdot (I)" if match[1] else "(I)", text)
