"""Tests that only the model's own text is scored: the definition, and each path that uses it."""

import json

import pytest
from tests.refusals import config_error

from gdpo.rewards import Reward, score
from gdpo.rewards.text import completion_text, content_text, from_file, prompt_text


def says(content, role="assistant", **more):
    return {"role": role, "content": content, **more}


def part(text, **more):
    return {"type": "text", "text": text, **more}


CALL = says("I look.", tool_calls=[{"function": {"name": "look", "arguments": {"at": "TOOL"}}}])
RESULT = says("TOOL", "tool", name="look")

CASES = {
    "a text": ("3", "3", "3"),
    "a text that looks like messages": ('[{"role": "tool", "content": "7"}]',) * 3,
    "no messages": ([], "", ""),
    "one message": ([says("3")], "3", "3"),
    "a message without a list": (says("3"), "3", "3"),
    "a tool's message without a list": (RESULT, "", ""),
    "a tool has the answer": ([CALL, RESULT, says("3")], "3", "I look.\n3"),
    "the model ends with nothing": ([CALL, RESULT, says("")], "I look.", "I look."),
    "the model ends with white space": ([CALL, RESULT, says(" \n")], "I look.", "I look."),
    "only white space": ([says(" \n")], " \n", " \n"),
    "the model says nothing": ([says(None, tool_calls=[1]), RESULT, says("")], "", ""),
    "the tool comes last": ([CALL, RESULT], "I look.", "I look."),
    "only a tool": ([RESULT], "", ""),
    "a user and a system message": ([says("a"), says("U", "user"), says("S", "system")], "a", "a"),
    "a name for a role that is not the model's": ([says("a"), says("x", "function")], "a", "a"),
    "no role": ([{"content": "3"}, RESULT], "3", "3"),
    "parts": ([says([part("It is "), part("3")])], "It is 3", "It is 3"),
    "parts of other types": (
        [says([{"type": "image"}, part("3"), {"type": "reasoning", "text": "7"}, "!"])],
        "3!",
        "3!",
    ),
    "parts of responses": ([says([{"type": "output_text", "text": "3"}])], "3", "3"),
    "a part without a list": ([says(part("3"))], "3", "3"),
    "parts without text": ([says("3"), says([part(None), {}, None, 7])], "3", "3"),
    "parts of a tool": ([says("3"), says([part("TOOL")], "tool")], "3", "3"),
    "thoughts": ([says("3", reasoning_content="7")], "3", "3"),
    "no content": ([{"role": "assistant", "tool_calls": []}, RESULT], "", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_completion_is_the_models(name):
    completion, last, every = CASES[name]
    assert completion_text(completion) == last
    assert completion_text(completion, "all") == every


def test_all_messages_of_a_prompt_are_its_text():
    assert prompt_text([says("S", "system"), says([part("2+"), part("2")], "user")]) == "S2+2"
    assert prompt_text("2+2") == "2+2"
    assert content_text(None) == ""


TALK = [CALL, RESULT, says([part("3")])]
AS_JSON = json.dumps(TALK)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ([AS_JSON, " ", json.dumps(says("4"))], [TALK, " ", [says("4")]]),
        ([AS_JSON, "It is 3."], [AS_JSON, "It is 3."]),  # a response that looks like messages
        (['["3"]', '[{"content": "3"}]', "[]", "[", "3"], ["same"]),
        (['[{"content": "3"}]'], ["same"]),  # no roles
        (['{"content": "3"}'], ["same"]),
        (["[]"], ["same"]),
        (["[" * 100_000], ["same"]),
        ([TALK, says("4"), None, 3, [], [1, 2], {"text": "x"}], [TALK, [says("4")], *[None] * 5]),
        ([["a", None, says("b")]], [[{"content": "a"}, says("b")]]),
        ([tuple(TALK), AS_JSON], [TALK, TALK]),
    ],
)
def test_messages_in_a_file_are_decoded_if_every_text_of_the_column_is_messages(column, wanted):
    assert from_file(column) == (column if wanted == ["same"] else wanted)


def is_right(text, reference):
    return float(reference["answer"] in text)


LAST = Reward("last", is_right, 0, 1)
EVERY = Reward("every", is_right, 0, 1, scope="all")
SLOW = Reward("slow", is_right, 0, 1, scope="all", deadline=60)


async def is_right_later(text, reference):
    return is_right(text, reference)


def test_each_reward_gets_the_text_of_its_scope():
    later = Reward("later", is_right_later, 0, 1, scope="all")
    talk = [says("It is 7."), RESULT, says("No, 3.")]
    completions = [talk, "7", [RESULT]]
    scores = score([LAST, EVERY, SLOW, later], completions, [{"answer": "7"}] * 3)
    assert scores.values.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]


def test_completions_with_the_same_text_are_scored_once():
    seen = []
    spy = Reward("spy", lambda text, _: seen.append(text) or 0.0, 0, 1)
    score([spy], ["3", [says("3")], [CALL, says("3")], [says("4")]], [{}] * 4)
    assert seen == ["3", "4"]


def test_a_failure_shows_the_models_text(caplog):
    fails = Reward("fails", lambda text, _: 1 / 0, 0, 1)
    score([fails], [[CALL, RESULT]], [{}])
    assert "'I look.'" in caplog.text
    assert "TOOL" not in caplog.text


@pytest.mark.parametrize("scope", ["first", None, ["last"]])
def test_a_scope_that_does_not_exist_is_refused(scope):
    with config_error(r"'r': scope"):
        Reward("r", is_right, 0, 1, scope=scope)


@pytest.mark.parametrize("of", ["tokens", "turn"])
def test_a_scope_is_only_for_rewards_of_the_text(of):
    with config_error("scope='all'"):
        Reward("r", is_right, 0, 1, of=of, scope="all")
    Reward("r", is_right, 0, 1, of=of)


TALKS = [json.dumps([CALL, RESULT, says(str(i))]) for i in range(5)]


@pytest.mark.parametrize("odd", ["[]", "null", TALKS[0][:40], "{"])
def test_one_row_that_is_not_messages_does_not_make_texts_of_the_others(odd):
    found = from_file([*TALKS, odd])
    assert [completion_text(each) for each in found[:5]] == ["0", "1", "2", "3", "4"]
    assert found[5] is None


def test_a_file_that_distinguishes_texts_from_messages_is_not_decoded():
    assert from_file(TALKS, decode=False) == TALKS
