r"""Reads the text of an answer: Markdown, phrases such as "no solution", names, units, notation.

A unit is dropped from the number before it, and `Unit` keeps what it measures. Two units contradict
each other if each names a measure that the other does not.
"""

import re
from typing import TypeAlias

_SPACE = r"(?:\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s)"
"""Regular expression for one space in LaTeX."""

_TEXT = r"\\(?:text(?:rm|normal|bf|it)?|mbox|mathrm)\s*"
"""Regular expression for a LaTeX command that turns the next group into text."""

Unit: TypeAlias = frozenset[str]
"""Measures that a unit names, such as km and h. Empty: no unit, or one that is not a measure."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Marks and words around an answer.

_EMPHASIS = re.compile(r"(?<![\w)}\]{^*`\\])(\*{1,3}|`{1,3})(?=\S)([^*`]+)(?<=\S)\1(?![\w({\[*`^])")

_UNDERLINED = re.compile(r"(_{1,3})([^_]+)\1")

_LEAD = re.compile(
    rf"(?:#{{1,6}}\s+|(?:{_TEXT}\{{)?\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:my\s+|the\s+)?"
    r"(?:(?:final|correct)\s+)?answer(?:\s+is\s*:?|\s*:)\s*\}?\s*)",
    re.IGNORECASE,
)

_OPTION = re.compile(r"(?:option|choice)\s+(?=\(?[A-J]\)?$)", re.IGNORECASE)


def plain(answer: str) -> str:
    """Return an answer without the Markdown marks and the lead ("The answer is") around it.

    Examples:
        >>> plain("**73** people"), plain("The answer is: `B`."), plain("2*3*4")
        ('73 people', 'B.', '2*3*4')
    """
    text = answer.strip()
    for _ in range(3):
        text = _EMPHASIS.sub(r"\2", text).strip()
        if match := _UNDERLINED.fullmatch(text):
            text = match[2].strip()
        match = _LEAD.match(text)
        text = text[match.end() :] if match else text
        if match and match.group().startswith("\\") and "}" not in match.group():
            text = text.removesuffix("}")
    return _OPTION.sub("", text)


# Answers that are words.

_IN_TEXT = re.compile(rf"{_TEXT}\{{([^{{}}]*)\}}")

_WORDS = re.compile(r"[A-Za-z][A-Za-z\s'’,.-]*")

_OPENING = re.compile(
    r"(?:(?:there|it|this|(?:the )?(?:equation|system)) (?:is|are|has) )?(?:an? |the )?"
)

SETS = {"no solution": r"\emptyset", "empty set": r"\emptyset"} | dict.fromkeys(
    ("all real number", "all real", "any real number"), r"\mathbb{R}"
)
"""Phrases that name a set, as `phrase` returns them."""


def phrase(answer: str) -> str | None:
    r"""Return the words of an answer of two or more words, or None for other answers.

    At least one word must have four letters or more, because short words may be factors (`a b`).

    Examples:
        >>> phrase(r"\text{No solutions.}"), phrase("There is no solution"), phrase("2 apples")
        ('no solution', 'no solution', None)
    """
    text = _unwrapped(answer)
    if not _WORDS.fullmatch(text):
        return None
    words = re.sub(r"[\s,.-]+", " ", text.lower()).strip()
    words = _OPENING.sub("", words, count=1)
    if words.startswith("no "):
        words = re.sub(r" exists?$", "", words)
    if " " not in words or not re.search(r"[a-z]{4}", words):
        return None
    return re.sub(r"(?<=[a-z]{3})(?<!s)s\b", "", words)


def same_letters(answer: str, other: str) -> bool:
    mine, theirs = _squeezed(answer), _squeezed(other)
    return mine == theirs or (mine.isalpha() and mine.lower() == theirs.lower())


def _squeezed(answer: str) -> str:
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", _unwrapped(answer).rstrip(" ."))


def _unwrapped(answer: str) -> str:
    r"""Return an answer without the command around the words in `\text{...}`, and single spaces."""
    return re.sub(rf"{_SPACE}+", " ", _IN_TEXT.sub(r" \1 ", answer)).strip()


# Names before an equals sign.

_BEFORE = r"(^|[,;(]|\\(?:text|mbox)\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z])(?:and|or)\s)\s*"

_LETTER_NAME = re.compile(
    rf"{_BEFORE}((?:[IEie]|\\math(?:bb|cal)\s*\{{[A-Z]\}})'*(?:_(?:\{{[^{{}}=]{{1,20}}\}}|[A-Za-z0-9]))?'*"
    r"(?:\([^()=]{0,20}\)|\[[^\[\]=]{0,20}\])?)\s*=(?!=)"
)

_WORD_NAME = re.compile(rf"{_BEFORE}([A-Za-z]{{1,20}}(?:\s+[A-Za-z]{{1,20}}){{0,5}})\s*=(?!=)")

_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|sqrt|det|max|min|lim|or|and"
)

_ALTERS = _set(
    """
    no not wrong incorrect half twice thrice double triple minus plus times over negative
    inverse reciprocal squared cubed
    """
)
"""Words that turn a name into the name of a different value."""


def with_names(text: str) -> str:
    """Return a text in which math-verify can parse each name before an equals sign.

    math-verify reads I, i, E and e as numbers, and "total cost" as a product. The text is "" if a
    name is not the name of the value, such as "half of the total".
    """
    text = _LETTER_NAME.sub(lambda match: match[1] + _named(match[2]), text)
    named = [match[2].split() for match in _WORD_NAME.finditer(text)]
    if any(_ALTERS.intersection(map(str.lower, words)) for words in named):
        return ""
    return _WORD_NAME.sub(_with_word_name, text)


def _with_word_name(match: re.Match[str]) -> str:
    words = match[2].split()
    is_name = any(len(word) > 3 for word in words) and not any(map(_FUNCTION.fullmatch, words))
    return match[1] + _named(match[2]) if is_name else match.group()


def _named(name: str) -> str:
    return rf"\text{{named{re.sub('[^A-Za-z0-9]', '', name)}}}="


# Numbers with words after them.

_PIECE = rf"{_TEXT}\{{[^{{}}]*\}}(?:\s*\^\s*(?:[0-9]|\{{-?[0-9]\}}))?"

_TAIL = re.compile(rf"{_SPACE}*{_PIECE}(?:(?:{_SPACE}|/|\\cdot\s*)*{_PIECE})*$")

_NO_NUMBER = re.compile(r"(?:[-+*/=^_,<>(&]|\\(?:cdot|times|div|[lg]eq?|neq?|in|pm|mp))$")

_POWER = re.compile(r"(?<=[a-zA-Z])\^?-?[1-4](?![0-9])")

_SPELT = re.compile(r"[A-Za-zµμΩ\s'/()^·-]*")

_ALL_TEXT = re.compile(rf"{_TEXT}\{{\s*((?:[-+]|\\?\$)*\.?[0-9][^{{}}]*)\}}")

_TOKEN = r"[A-Za-zµμ][A-Za-zµμ'.-]*(?:\s*\^\s*(?:[1-4]|\{-?[1-4]\}))?"

_BARE = re.compile(
    rf"(?:(?<=[0-9}})%])|(?<=\\pi)(?=\s))(\s*)({_TOKEN}(?:(?:\s*/\s*|\s+){_TOKEN})*)\.?$"
)

_DIGITS = re.compile(r"(?:.*=\s*)?[-+]?[0-9][0-9.,/\s]*", re.DOTALL)

_DEGREES = re.compile(r"(\^\s*\{?\s*\\circ\s*\}?)\s*([CFK])$")

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

_SYNONYMS = """
    mm millimeter millimetre; cm centimeter centimetre; dm decimeter decimetre; m meter metre;
    km kilometer kilometre; nm nanometer; in inch; ft foot feet; yd yard; mi mile;
    mg milligram; g gram; kg kilogram kilo; lb lbs pound; oz ounce; ton; tonne;
    ml milliliter millilitre; cl; dl; l liter litre; gal gallon; qt quart; pt pint; cup;
    ms millisecond; s sec second; min minute; h hr hour; day; week; month; year yr;
    am; pm; dollar; cent; euro; degree deg; rad radian; celsius; fahrenheit; kelvin;
    j joule; kj kilojoule; w watt; kw kilowatt; n newton; v volt; hz hertz; pa pascal;
    mi/h mph; km/h kmh kph; north; south; east; west; up; down; clockwise; counterclockwise;
    profit; loss; increase; decrease"""

_MEASURES = {
    alias: names.split()[0].split("/") for names in _SYNONYMS.split(";") for alias in names.split()
}
"""The measures that a word of a unit names. Other words name no measure."""

_CELSIUS = {"c": "celsius", "f": "fahrenheit", "k": "kelvin"}

_TWO_LETTERS = _set(
    """
    mm cm dm km nm um ft in yd mi lb oz mg kg ml cl dl hr sq cu pt qt ha am pm hz kw mw kj ev kv
    mv ma pa cc st nd rd th rs ms ns kn cd
    """
)

_BARE_TWO = _set("mm cm km nm ft in yd mi lb oz mg kg ml hr am pm kw kj hz cc sq cu of an a")
"""Words of at most two letters that belong to a unit without `\\text`. Others are factors."""

_JOINED = _set("mm cm km mg kg ml ft lb lbs mph kmh kph hrs")
"""Units that may follow a number directly. Other letters are factors."""

_ONE_LETTER = frozenset("acfghjklmnsvw")
"""Letters that belong to a unit only next to other words. A single letter may be a variable."""

_LETTER = "[mgshlLNJWV]"
"""A letter that is a unit after digits, in `\\text` or after a space. Others may be variables."""

_LETTER_IN_TEXT = re.compile(
    rf"{_SPACE}*{_TEXT}\{{\s*{_LETTER}\s*\}}(?:\s*\^\s*(?:[1-4]|\{{-?[1-4]\}}))?"
)

_CHANGING = _set(
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
    """
)
r"""Words that change the value of the number before them, or turn it into a condition or choice."""


def read_words(text: str) -> tuple[str, Unit]:
    """Return a number without its unit, and the unit. Number words are evaluated.

    A text that is not a number and words is returned unchanged.
    """
    text = _with_text(text)
    degrees: Unit = frozenset(["degree"] if re.search(r"\\circ\s*\}?$", text) else [])
    tail = _TAIL.search(text)
    if not tail or not re.search(r"[0-9]", text[: tail.start()]):
        return text, degrees
    number = text[: tail.start()].strip()
    phrase = _POWER.sub("", " ".join(_IN_TEXT.findall(tail.group())).replace(".", ""))
    words = re.findall(r"[^\s/()^·'-]+", phrase.lower())
    factor = 1
    while words and words[0] in _SCALES:
        factor *= _SCALES[words.pop(0)]
    if " ".join(words) in _PERCENT and factor == 1:
        return rf"{number}\%", frozenset()
    if len(words) == 1 and words[0] in _MARKS and number.isdigit() and factor == 1:
        return number + _MARKS[words[0]], frozenset()
    unit = bool(_SPELT.fullmatch(phrase)) and _is_unit(words, number, tail.group())
    if _NO_NUMBER.search(number) or not (unit or (factor > 1 and not words)):
        return text, degrees
    return rf"{number}\times {factor}" if factor > 1 else number, _measures(words, number)


def contradict(unit: Unit, other: Unit) -> bool:
    return bool(unit - other and other - unit)


def _measures(words: list[str], number: str) -> Unit:
    if re.search(r"\\circ\s*\}?$", number):
        return frozenset(["degree", *(_CELSIUS.get(word, word) for word in words)])
    units = [word for i, word in enumerate(words, 1) if word != "in" or i == len(words)]  # in total
    forms = ((word, word.removesuffix("s"), word.removesuffix("es")) for word in units)
    known = (next((_MEASURES[x] for x in form if x in _MEASURES), []) for form in forms)
    return frozenset(name for names in known for name in names)


def _with_text(text: str) -> str:
    r"""Return a text whose unit is in `\text{...}`, even if it is bare, as in 73 people."""
    if match := _ALL_TEXT.fullmatch(text):
        text = match[1].strip()
    text = _DEGREES.sub(r"\1\\text{\2}", text)
    match = _BARE.search(text)
    if not match:
        return text
    number, spaced, words = text[: match.start()], bool(match[1]), match[2]
    bare = re.sub(r"\s*\^\s*(?:[1-4]|\{-?[1-4]\})|\.", "", words)
    if not _is_bare(re.findall(r"[^\s/-]+", bare), bare, number, spaced=spaced):
        return text
    return rf"{number}\text{{ {bare}}}"


def _is_bare(words: list[str], text: str, number: str, *, spaced: bool) -> bool:
    """Return whether words after a number may be words, not letters that are factors."""
    if len(words) == 1 and len(text) == 1:
        return spaced and bool(re.fullmatch(_LETTER, text) and _DIGITS.fullmatch(number))
    if not spaced:
        return text.lower() in _JOINED
    if "/" in text and all(word.lower() in _MEASURES for word in words):
        return True
    return all(
        word in _BARE_TWO if len(word) < 3 else word in _MEASURES or re.search("[aeiouy]", word)
        for word in map(str.lower, words)
    )


def _is_unit(words: list[str], number: str, tail: str) -> bool:
    if words[:1] == ["base"]:
        return len(words) == 2
    if re.search(r"\\circ\s*\}?$", number) and words in (["c"], ["f"], ["k"]):
        return True
    if _LETTER_IN_TEXT.fullmatch(tail) and _DIGITS.fullmatch(number):
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


# The notation of an answer.

_CHARACTERS = str.maketrans(
    dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | dict.fromkeys("€£¥₹")
    | {"−": "-", "°": r"^\circ ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot "}
    | {"÷": "/", "∞": r"\infty ", "∅": r"\emptyset ", "∪": r"\cup ", "∩": r"\cap "}
    | {"²": "^2", "³": "^3", "√": r"\sqrt "}
)

_DASH = re.compile(r"(?<![0-9])(?<![0-9] )[–—]|[–—](?! ?[0-9])")
"""Matches a long dash that is used as a minus sign. Between two digits, a long dash marks a range,
as in 2–3."""

_AROUND = re.compile(r"\\?\$|^\\[(\[]|\\[)\]]$")

_DOLLARS = re.compile(r"\s*-?(?:\\\$|\$(?=[^$]*$))")

_EDGE = re.compile(rf"^{_SPACE}+|(?:{_SPACE}|[.,;])+$")

_SWITCH = re.compile(
    r"\\(?:displaystyle|textstyle|(?:foot|script|normal)size|tiny|small|[lL]arge|LARGE|huge|Huge"
    r"|bfseries|boldmath)(?![a-zA-Z])\s*|\\(?:text)?color\s*\{[^{}]*\}"
)

_OLD_FONT = re.compile(r"(?:\{\s*\\(bf|rm|it|sf)(?![a-zA-Z])\s*|\\(bf|rm|it|sf)\s*\{)")

_FONT = re.compile(r"\\(?:boldsymbol|bm|math(?:bf|it|sf|normal)|textbf|underline)\s*\{")

_WORD = re.compile(r"[\sA-Za-z.]*[A-Za-z]{2}[\sA-Za-z.]*")

_NUMERAL_IN_TEXT = re.compile(rf"{_TEXT}\{{\s*([-+]?[0-9][0-9.,/]*)\s*\}}")

_LABEL = re.compile(
    rf"(?:{_TEXT}\{{\s*(?:\(([A-J])\)|([A-J])[).:])\s*\}}|\(([A-J])\)(?=\s+(?:[0-9]|\\(?:[dt]?frac|sqrt|\$))))"
    rf"{_SPACE}*(.*)",
    re.DOTALL,
)

_CHOICE = re.compile(rf"(?:{_TEXT}\{{)?\s*\(?([A-J])\)?\s*\}}?")

_DIGITS_IN_BRACES = re.compile(r"(?<![0-9A-Za-z}_^\]])(?:\{[0-9]+\})+(?!\{)")

_DIGITS_APART = re.compile(rf"(?<![_^0-9.])[0-9]+(?:\.[0-9]+)?{_SPACE}+[0-9]")

_THOUSANDS = re.compile(
    rf"(?<![_^0-9.])[0-9]{{1,3}}(?:(?:,\\!|{_SPACE}{{1,3}})[0-9]{{3}})+(?![0-9])"
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
    (re.compile(rf"\^\s*\{{?\s*{_TEXT}\{{(?:st|nd|rd|th)\}}\s*\}}?$"), ""),
    (re.compile(r"\\[dtc]?frac\s+([0-9])\s+([0-9])"), r"\\frac{\1}{\2}"),
    # 5 1/2
    (
        re.compile(rf"(?<![_^0-9./])([0-9]+){_SPACE}+([0-9]+)\s*/\s*([0-9]+)(?![0-9./])"),
        r"\1\\frac{\2}{\3}",
    ),
    # 1./3: a point without digits after an integer inside a formula
    (re.compile(r"(?<![0-9.,])([0-9]+)\.(?=\s*(?:[-+*/)}]|\\(?:times|cdot)(?![a-zA-Z])))"), r"\1"),
    # 2.5e-3 and 1e3 are powers of ten, but 2e-3 is twice Euler's number minus 3
    (
        re.compile(
            r"(?<![\w.\\])((?:[0-9]+\.[0-9]*|\.[0-9]+)(?=[eE])|[0-9]+(?=E|e[0-9]))"
            r"[eE]([-+]?[0-9]+)(?![\w.])"
        ),
        r"(\1\\times10^{\2})",
    ),
)

_POWER_OF_I = re.compile(r"([0-9A-Za-z)}]\s*)?(?<!\\)I(?=\s*\^)")

_TEX_LETTER = re.compile(rf"(?:{_TEXT}|\\mathit\s*)\{{\s*([A-Za-z])\s*\}}")


def clean(answer: str) -> tuple[str, Unit]:
    """Return an answer in a form that math-verify can parse, and its unit.

    The text is "" if `answer` is not a single answer.
    """
    dollars = frozenset(["dollar"] if _DOLLARS.match(answer) else [])
    bare = _AROUND.sub("", _DASH.sub("-", answer.strip()).translate(_CHARACTERS).strip())
    bare = _EDGE.sub("", _without_style(_EDGE.sub("", bare)))
    while bare.startswith("{") and end_of_group(bare, 1) == len(bare) - 1:
        bare = bare[1:-1].strip()
    bare = _EDGE.sub("", bare.removeprefix(r"\approx"))
    for pattern, replacement in _NOTATION:
        bare = pattern.sub(replacement, bare)
    bare = _DIGITS_IN_BRACES.sub(lambda match: re.sub(r"[{}]", "", match.group()), bare)
    bare = _RECURRING.sub(_as_fraction, bare)
    bare = _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match.group()), bare)
    if _DIGITS_APART.search(bare):
        return "", dollars
    text, unit = read_words(bare)
    text = _TEX_LETTER.sub(r" \1", text).strip()
    # math-verify misreads I^2.
    text = _POWER_OF_I.sub(lambda match: rf"{match[1]}\cdot (I)" if match[1] else "(I)", text)
    return with_names(text), unit | dollars


def without_label(answer: str) -> tuple[str | None, str]:
    r"""Return the choice letter and the text after it. Example: B and 12 for \textbf{(B)}\ 12."""
    bare = _EDGE.sub("", _AROUND.sub("", answer.strip()))
    if match := _CHOICE.fullmatch(bare):
        return match[1], ""
    match = _LABEL.fullmatch(bare)
    return (match[1] or match[2] or match[3], match[4]) if match else (None, answer)


def end_of_group(text: str, start: int) -> int:
    """Return the index of the brace that closes the group opened at `start`, or -1 if none."""
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return start + match.start()
    return -1


def _without_style(text: str) -> str:
    r"""Return the text without size, colour and font commands. \mathbf{cm} remains a word."""
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


def _as_fraction(match: re.Match[str]) -> str:
    r"""Return a recurring decimal as a fraction. Example: \frac{15}{90} for 0.1\overline{6}."""
    whole, fixed = match[1], match[2]
    recurring = match[3] or match[4] or match[5]
    over = int(whole + fixed + recurring) - int(whole + fixed or "0")
    return rf"\frac{{{over}}}{{{10 ** len(fixed) * (10 ** len(recurring) - 1)}}}"
