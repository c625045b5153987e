import json
import re
import sys
from functools import partial
from itertools import permutations
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import data_error

from gdpo.lab.tasks import TASKS
from gdpo.lab.tasks.tool_calling._rewards import best_total
from gdpo.lab.tasks.tool_calling.calls import same_value
from gdpo.lab.tasks.tool_calling.prompt import tool_prompt, write_completion

TASK = TASKS["tool_calling"]


def scored(name, completion, gold):
    return TASK.reward(name).function(completion, {"output": gold})


formatted, graded = partial(scored, "format"), partial(scored, "correctness")


def call(name, **parameters):
    return {"name": name, "parameters": parameters}


def turn(*calls, response=None):
    return write_completion("so", calls, response)


def block(text):
    """Return a completion with hand-written calls."""
    return f"<think> so </think>\n<tool_call>\n{text}\n</tool_call>"


OSLO = call("weather", city="Oslo", days=3)
CALL = turn(OSLO)
TALK = turn(response="It is noon.")
BOTH = turn(call("ping"), response="Looking.")
THINK = "<think> nothing to do </think>"

# ---- format ----


@pytest.mark.parametrize("gold", [CALL, TALK, BOTH, THINK])
def test_format_wants_the_fields_of_the_gold_text_and_no_other(gold):
    for completion in (CALL, TALK, BOTH, THINK):
        assert formatted(completion, gold) == float(completion == gold)


@pytest.mark.parametrize(
    "completion",
    [
        CALL,
        f" \n{CALL}\n\n",
        CALL.replace("\n", ""),
        CALL.replace("\n", "\n\n \t\n"),
        CALL.replace("\n", "\r\n"),
        "<think>x</think><tool_call>{not json at all}</tool_call>",
        CALL.replace("so", "<tool_call> is what I write, then </tool_call>, no <response>"),
        CALL.replace("so", "<think> again"),
        CALL.replace("Oslo", "<tool_call></tool_call><think></think><response>"),
        CALL.replace("Oslo", r"a\"</tool_call>"),
    ],
)
def test_format_is_about_fields_and_not_about_spaces_or_contents(completion):
    assert formatted(completion, CALL) == 1


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "weather in Oslo",
        CALL.replace("<think>", ""),
        CALL.replace("</think>", ""),
        CALL.replace("</tool_call>", ""),
        CALL.replace("<tool_call>", ""),
        CALL.replace(" so ", " "),  # no thought
        CALL.replace(" so ", "\u200b"),
        CALL.replace(" so ", "\x00"),
        block(""),  # no call
        f"Sure! {CALL}",
        f"{CALL} Bye!",
        CALL.replace("\n<tool_call>", " and so </think>\n<tool_call>"),
        f"{CALL}\n{CALL}",
        f"{CALL}\n<tool_call>{{}}</tool_call>",
        CALL.replace("<tool_call>", "<tool_call><tool_call>"),
        CALL.replace("</tool_call>", "</tool_call></tool_call>"),
        block("{not <response> json}"),
        block('{"name": "f", "parameters": {}} <think>'),
    ],
)
def test_format_fails_a_completion_with_a_field_missing_empty_doubled_or_nested(completion):
    assert formatted(completion, CALL) == 0


@pytest.mark.parametrize(
    "completion",
    [
        "<think>a</think><response></response>",
        "<think>a</think><response> \n </response>",
        "<think>a</think><response>\u200b</response>",
        "<think>a</think><response>\x00\ufeff\u3164</response>",
        "<think>a</think><response>b</response><response>c</response>",
        "<think>a</think><response>b <response> c</response>",
        "<think>a</think><response>I call <tool_call>{}</tool_call></response>",
        "<think>a</think><response>b</think>c</response>",
        "<response>b</response><think>a</think>",
        "<think>a</think><response>b</response><tool_call>{}",
    ],
)
def test_format_fails_a_response_that_is_empty_doubled_or_holds_a_tag(completion):
    assert formatted(completion, TALK) == 0


def test_format_wants_the_call_before_the_response():
    thinking, calls, response = BOTH.partition("<tool_call>")[0], "<tool_call>{}</tool_call>", "x"
    assert formatted(f"{thinking}{calls}<response>{response}</response>", BOTH) == 1
    assert formatted(f"{thinking}<response>{response}</response>{calls}", BOTH) == 0


def test_a_tag_named_in_the_thinking_of_the_gold_text_asks_for_nothing():
    gold = CALL.replace("so", "first a <tool_call>, later a <response>")
    assert formatted(CALL, gold) == 1
    assert graded(CALL, gold) == 3
    talk = TALK.replace("so", "no <tool_call> here")
    assert formatted(TALK, talk) == 1
    assert graded(TALK, talk) is None


# ---- correctness: how calls are read ----

TWO = turn(call("f", x=1), call("g", y=[1, {"z": None}]))
LINES = TWO.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
OBJECTS = [json.loads(line) for line in LINES.split("\n")]


@pytest.mark.parametrize(
    "written",
    [
        LINES,
        LINES.replace("\n", "\n\n\n"),
        LINES.replace("\n", " "),
        LINES.replace("\n", ""),
        LINES.replace("\n", "\r\n"),
        "\n".join(json.dumps(o, indent=2) for o in OBJECTS),
        json.dumps(OBJECTS),
        json.dumps(OBJECTS, indent=2),
        "\n".join(json.dumps([o]) for o in OBJECTS),
        json.dumps(OBJECTS[::-1]),
        "\n".join(json.dumps({**o, "id": 7}) for o in OBJECTS),
        "\n".join(json.dumps(dict(reversed(o.items()))) for o in OBJECTS),
        LINES.replace("1", "1.0"),
    ],
)
def test_calls_are_read_however_they_are_laid_out(written):
    assert graded(block(written), TWO) == 3


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        LINES[:-1],
        LINES + ",",
        LINES.replace("\n", ",\n"),
        LINES.replace('"', "'"),
        f"```json\n{LINES}\n```",
        f"{LINES}\nnull",
        f"{LINES}\n[[]]",
        f"{LINES}\n[[{OBJECTS[0]}]]",
        f'{LINES}\n{{"name": "f"}}',
        f'{LINES}\n{{"name": "f", "arguments": {{}}}}',
        f'{LINES}\n{{"name": "f", "parameters": []}}',
        f'{LINES}\n{{"name": null, "parameters": {{}}}}',
        f'{LINES}\n{{"parameters": {{}}}}',
        f'{LINES}\n{{"name": "f", "parameters": {{"x": NaN}}}}',
        LINES.replace('"name"', '"name": "other", "name"'),
        LINES.replace('"parameters"', '"parameters": {}, "parameters"'),
        f'{LINES}\n{{"name": "f", "parameters": {{"x": [{{"y": 1, "y": 2}}]}}}}',
        f'{LINES}\n{{"name": "f", "parameters": {{"x": -Infinity}}}}',
        f'{LINES}\n{{"name": "f", "parameters": {{"x": {"9" * 5000}}}}}',
    ],
)
def test_calls_that_cannot_be_read_get_the_lowest_score(written):
    assert graded(block(written), TWO) == -3


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("", -3),
        (TALK, -3),
        (CALL.replace("</tool_call>", ""), -3),
        (CALL.replace("</think>", ""), 3),  # no thinking that is closed: a matter of format
        (CALL.partition("</think>")[2], 3),
        (f"well, {CALL}", 3),
        (CALL.replace("so", "<tool_call>{}</tool_call>"), 3),
        (f"<think>{CALL.partition('</think>')[2]}</think> done", -3),  # only thought of
        (f"{CALL}\n<response>or {CALL}</response>", 3),  # only told of
        (f"{CALL}\n<tool_call>{{}}", -3),
        (CALL.replace("Oslo", "Oslo</tool_call>"), 1.5),
    ],
)
def test_calls_are_those_of_closed_fields_after_the_thinking(completion, expected):
    assert graded(completion, CALL) == expected


def test_calls_of_a_second_field_count():
    first, second = (block(json.dumps(o)) for o in OBJECTS)
    rest = second.partition("</think>")[2]
    assert graded(first + rest, TWO) == 3
    assert graded(CALL + rest, CALL) == graded(turn(OSLO, OBJECTS[1]), CALL)


# ---- correctness: how calls are graded ----


def published_by_hand(gold, written, best):
    """Return -3 + 6 · found / possible for a given sum of the best matches."""
    names = [c["name"] for c in gold], [c["name"] for c in written]
    common = sum(min(names[0].count(n), names[1].count(n)) for n in set(names[0]))
    overlap = common / (len(gold) + len(written) - common)
    return -3 + 6 * (overlap + best) / (1 + sum(1 + len(c["parameters"]) for c in gold))


@pytest.mark.parametrize(
    ("written", "best"),
    [
        ([OSLO], 3),
        ([call("weather", city="Oslo", days=4)], 2),
        ([call("weather", city="oslo", days=3)], 2),
        ([call("weather", city="Oslo")], 1 / 2 + 1),
        ([call("weather")], 0),
        ([call("weather", town="Oslo", day=3)], 0),
        ([call("weather", city="Oslo", days=3, unit="C")], 2 / 3 + 2),
        ([call("weather", city="Oslo", unit="C")], 1 / 3 + 1),
        ([call("forecast", city="Oslo", days=3)], 0),
        ([OSLO] * 2, 3),
        ([OSLO, call("ping")], 3),
        ([call("ping"), call("weather", days=3), OSLO], 3),
    ],
)
def test_correctness_is_the_share_of_names_parameters_and_values(written, best):
    gold = [OSLO]
    expected = published_by_hand(gold, written, best)
    assert graded(turn(*written), CALL) == pytest.approx(expected, abs=1e-12)


def test_tool_names_overlap_as_a_jaccard_index():
    gold, written = turn(call("f"), call("g")), turn(call("f"), call("h"))
    assert graded(written, gold) == pytest.approx(-3 + 6 * (1 / 3 + 1) / 3)
    gold, written = turn(call("f"), call("f")), turn(call("f"), call("f"), call("f"))
    assert graded(written, gold) == pytest.approx(-3 + 6 * (2 / 3 + 2) / 3)


def test_a_reference_answer_that_cannot_be_parsed_is_an_error():
    with data_error("reference answer"):
        graded(CALL, block("{"))


def test_a_call_without_parameters_is_right_by_its_name():
    assert graded(turn(call("ping")), turn(call("ping"))) == 3
    assert graded(turn(call("ping", x=1)), turn(call("ping"))) == 0


def test_matching_is_optimal_where_greedy_matching_is_not():
    # The first gold call takes the written one that the second needs, if it may choose first.
    gold = turn(call("f", x=1), call("f", x=1, y=1, z=1))
    written = turn(call("f", x=1, y=1, z=1), call("f", x=2))
    apart = TASKS["tool_calling_compatible"].reward("correctness")
    assert graded(written, gold) == pytest.approx(-3 + 6 * (1 + 1 + 4) / 7)
    greedy = -3 + 6 * (1 + (1 / 3 + 1) + 1 / 3) / 7
    assert apart.function(written, {"output": gold}) == pytest.approx(greedy)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (1, "1", False),
        (None, None, True),
        (None, 0, False),
        (0, None, False),
        ([1, [True]], [1.0, [True]], True),
        ([1, [True]], [1, [1]], False),
        ([1], [1, 1], False),
        ({"a": 1, "b": {"c": []}}, {"b": {"c": []}, "a": 1}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ({}, [], False),
        ([], {}, False),
        ("ü", "u\u0308", False),
        (10**400, 1e308, False),
    ],
)
def test_values_are_compared_as_json(a, b, same):
    assert same_value(a, b) is same
    assert same_value(b, a) is same


def test_values_nested_deeper_than_python_may_recurse_are_compared():
    def nested(depth, core):
        for _ in range(depth):
            core = [core]
        return core

    deep = sys.getrecursionlimit() * 3
    assert same_value(nested(deep, 1), nested(deep, 1.0))
    assert not same_value(nested(deep, 1), nested(deep, True))


@given(
    st.integers(1, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0, 1, 2, 0.5, 4 / 3]), min_size=columns, max_size=columns),
            min_size=1,
            max_size=4,
        )
    )
)
def test_assignment_is_the_best_of_all_permutations(weights):
    rows, columns = len(weights), len(weights[0])
    padded = [row + [0] * rows for row in weights]
    best = max(
        sum(padded[i][j] for i, j in enumerate(chosen))
        for chosen in permutations(range(columns + rows), rows)
    )
    assert best_total(weights) == pytest.approx(best, abs=1e-12)


def test_assignment_of_nothing_is_nothing():
    assert best_total([]) == 0
    assert best_total([[], []]) == 0


# ---- hostile completions ----

ONE = json.dumps(OSLO)


@pytest.mark.slow
@pytest.mark.parametrize(
    "completion",
    [
        block("\n".join([ONE] * 10_000)),
        block("\n".join([ONE] * 256)),
        "<think>a</think>" + f"<tool_call>{ONE}</tool_call>" * 10_000,
        "<think>a</think>" + "<tool_call>" * 100_000,
        "<think>a</think>" + "<tool_call>{x</tool_call>" * 50_000,
        "<think>a</think>" + '<tool_call>["' * 50_000,
        "<think>" * 200_000,
        "</think>" * 200_000,
        "<response>" * 200_000,
        block("[" * 500_000),
        block('{"name": "f", "parameters": ' * 50_000),
        block(ONE.replace("3", "9" * 1_000_000)),
        block(ONE.replace("3", "[" * 900 + "]" * 900)),
        block(ONE.replace("Oslo", "\u00e9" * 2_000_000)),
        "<think>a</think>" + "\n " * 500_000 + "b",
        "\x00\x1b\ud800" * 100_000,
    ],
    ids=range(16),
)
@pytest.mark.parametrize("name", ["tool_calling", "tool_calling_compatible"])
def test_hostile_completions_cost_next_to_nothing(name, completion):
    gold = turn(*[call("weather", city=str(i), days=i) for i in range(12)])
    start = process_time()
    for reward in TASKS[name].rewards:
        value = reward.function(completion, {"output": gold})
        assert value is not None
        assert reward.low <= value <= reward.high
    assert process_time() - start < 2


def test_more_calls_than_anyone_means_get_the_lowest_score():
    spam = [call("weather", city="Oslo", days=i) for i in range(257)]
    assert graded(turn(*spam[:256]), CALL) > 1
    assert graded(turn(*spam), CALL) == -3
    assert graded(turn(*spam), turn(*spam)) == 3


# ---- rows ----


def test_both_published_shapes_of_row_give_the_same_sample():
    supervised = {"instruction": "tools", "input": "history", "output": CALL}
    training = {
        "data_source": "rlla",
        "prompt": [{"role": "system", "content": "tools"}, {"role": "user", "content": "history"}],
        "reward_model": {"ground_truth": CALL, "style": "rule"},
    }
    sample = TASK.read_row(supervised)
    assert sample == TASK.read_row(training)
    assert sample.reference == {"output": CALL}
    assert sample.prompt == training["prompt"]
    assert TASK.gold_completion(sample.reference) == CALL


GOOD = {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"ground_truth": CALL}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "prompt": "text"}, "column 'prompt'"),
        ({**GOOD, "prompt": []}, "column 'prompt'"),
        ({"reward_model": {}}, "column 'prompt' .*got nothing"),
        ({**GOOD, "prompt": ["text"]}, r"column 'prompt\[0\]'"),
        ({**GOOD, "prompt": [{"role": "tool", "content": ""}]}, r"prompt\[0\]\.role'"),
        ({**GOOD, "prompt": [{"role": "user"}]}, r"prompt\[0\]\.content'"),
        ({**GOOD, "reward_model": "x"}, r"column 'reward_model'"),
        ({**GOOD, "reward_model": {}}, r"'reward_model\.ground_truth' .*got nothing"),
        ({"instruction": "a", "input": "b", "output": block("{")}, "column 'output'"),
        ({"instruction": "a", "input": "b", "output": block("")}, "column 'output'"),
        ({**GOOD, "reward_model": {"ground_truth": " "}}, "'reward_model.ground_truth'"),
        ({"instruction": ["a"], "input": "b", "output": CALL}, "column 'instruction'"),
    ],
)
def test_a_row_that_cannot_be_used_names_its_column(row, message):
    with data_error(message):
        TASK.read_row(row)


# ---- prompt ----

CLOCK = {"name": "clock", "description": "Tells the time.", "parameters": {"zone": {"type": "str"}}}


def test_the_prompt_lists_tools_and_turns():
    system, user = tool_prompt(
        [CLOCK, {**CLOCK, "name": "b{}", "parameters": {}}],
        [
            {"role": "user", "content": "Time in {Oslo}?"},
            {"role": "assistant", "content": CALL},
            {"role": "tool", "content": "noon"},
            {"role": "assistant", "content": TALK},
            {"role": "user", "content": "And here?"},
        ],
    )
    assert (
        "tools:\n1. Name: clock\nDescription: Tells the time.\nParameters: "
        '{"zone": {"type": "str"}}\n2. Name: b{}\nDescription: Tells the time.\nParameters: {}\n\n'
        "**Steps for Each Turn**"
    ) in system["content"]
    assert user == {
        "role": "user",
        "content": (
            f"**Dialogue Records History**\n<user> Time in {{Oslo}}? </user>\n\n{CALL}\n"
            f"<obs> noon </obs>\n\n{TALK}\n\n<user> And here? </user>"
        ),
    }


def test_a_tool_without_a_description_and_a_turn_without_a_role_are_named():
    with data_error(r"tool 2 .*description, parameters"):
        tool_prompt([CLOCK, {"name": "x"}], [])
    with data_error("user, assistant, tool"):
        tool_prompt([CLOCK], [{"role": "system", "content": "x"}])
    with data_error("content"):
        tool_prompt([CLOCK], [{"role": "user"}])


def test_what_is_written_as_a_turn_gets_full_marks_as_one():
    for text in (CALL, TALK, BOTH, TWO):
        assert formatted(text, text) == 1
        assert graded(text, text) in (3, None)


def tools_of(instruction):
    """Return the tools in a row's prompt."""
    listed = instruction.partition("tools:\n")[2].partition("\n\n**Steps for Each Turn**")[0]
    form = r"\d+\. Name: (.*?)\nDescription: (.*?)\nParameters: (.*?)(?=\n\d+\. Name: |\Z)"
    return [
        {"name": name, "description": description, "parameters": json.loads(parameters)}
        for name, description, parameters in re.findall(form, listed, re.DOTALL)
    ]


def dialogue_of(text):
    """Return the turns of a row's history."""
    form = r"<user> (.*?) </user>|<obs> (.*?) </obs>|(<think>.*?)(?=\n<obs>|\n\n<|\Z)"
    found = re.findall(form, text, re.DOTALL)
    return [
        {"role": role, "content": content}
        for turns in found
        for role, content in zip(("user", "tool", "assistant"), turns, strict=True)
        if content
    ]


def test_the_prompt_of_every_row_is_written_again_letter_for_letter(real_rows):
    for row in real_rows("tools/rlla_sft.json.gz"):
        system, user = tool_prompt(tools_of(row["instruction"]), dialogue_of(row["input"]))
        assert system == {"role": "system", "content": row["instruction"]}
        assert user == {"role": "user", "content": row["input"]}


def test_the_gold_text_of_every_row_is_written_again_letter_for_letter(real_rows):
    form = (
        r"<think> (.*?) </think>\n"
        r"(?:<tool_call>\n(.*?)\n</tool_call>)?\n?(?:<response> (.*) </response>)?"
    )
    for row in real_rows("tools/rlla_sft.json.gz"):
        thinking, lines, response = re.fullmatch(form, row["output"], re.DOTALL).groups()
        calls = [json.loads(line) for line in (lines or "").splitlines()]
        assert write_completion(thinking, calls, response) == row["output"]
