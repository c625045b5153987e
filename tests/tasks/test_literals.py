"""Python literals and calls in rows are parsed, bounded, and never evaluated."""

import time

import pytest

from gdpo.errors import DataError
from gdpo.lab.tasks.tool_calling.calls import read_calls, read_literal, starts_calls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" -2.5 ", -2.5),
        ("'a' \"b\"", "ab"),
        (r"'\d'", r"\d"),
        ("True", True),
        ("[true, false, null, None]", [True, False, None, None]),
        ("(1, [2])", [1, [2]]),
        ("{'a': {'b': [-1]}}", {"a": {"b": [-1]}}),
        ("[\n 1,\n 2,\n]", [1, 2]),
    ],
)
def test_literals_have_the_values_of_json(text, value):
    assert read_literal(text) == value
    assert type(read_literal(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f(1)",
        "a.b",
        "open",
        "1 + 1",
        "f'{1}'",
        "b'a'",
        "1j",
        "...",
        "{1, 2}",
        "{1: 2}",
        "{**{}}",
        "[*'ab']",
        "[x for x in 'ab']",
        "lambda: 1",
        "-True",
        "-'a'",
        "--1",
        "1e999",
        "9" * 5000,
        "0x" + "f" * 5000,
        "'\0",
        "'\ud800' + 1",
        "[" * 5000,
        "[" * 40 + "]" * 40,
        "-" * 90_000 + "1",
        "1+" * 40_000 + "1",
        "1" * 100_001,
        "import os",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(DataError):
        read_literal(text)


def test_names_are_those_of_the_tools_or_what_stands_before_the_parenthesis():
    text = "[Find (v2)(a=1), Find (v2, new)(b=2), find-it/x.y(class='c', d-e=[3])]"
    calls, rest = read_calls(text, ["Find (v2)", "Find (v2, new)", "Find"])
    assert [call["name"] for call in calls] == ["Find (v2)", "Find (v2, new)", "find-it/x.y"]
    assert [call["parameters"] for call in calls] == [
        {"a": 1},
        {"b": 2},
        {"class": "c", "d-e": [3]},
    ]
    assert rest == ""


def test_brackets_commas_and_equals_signs_in_texts_are_no_punctuation():
    calls, rest = read_calls(r"""[f(a="x), g(b=1)]", c='\'),"=', d={"e=": "}"},)] and so on""", [])
    parameters = {"a": "x), g(b=1)]", "c": "'),\"=", "d": {"e=": "}"}}
    assert calls == [{"name": "f", "parameters": parameters}]
    assert rest == "and so on"


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("[f(a=1)]", True),
        ("[ Get It(a=1)", True),
        ("[A [x] (y)(a=1)]", True),
        ("[see](https://x)", False),
        ("[]", False),
        ("f(a=1)", False),
    ],
)
def test_calls_begin_with_a_bracket_a_name_and_a_parenthesis(text, begins):
    assert starts_calls(text, ["A [x] (y)"]) is begins


@pytest.mark.parametrize("part", ['f("\\"', "f(a=1), ", "[", '"', "f(a=(", " ", "f(a='", "(,="])
def test_time_is_linear_whatever_stands_there(part):
    text = ("[f(" + part * 100_000)[:100_000]
    start = time.process_time()
    with pytest.raises(DataError):
        read_calls(text, [])
    assert time.process_time() - start < 2
