"""Rows of other tool-calling datasets become ToolRL's prompt and reference answer."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.refusals import data_error, refusal
from tests.tasks.coding.test_rows import MBPP
from tests.tasks.coding.test_samples import APPS, CONTESTS, EURUS

from gdpo.errors import DataError
from gdpo.lab.tasks import TASKS, load_problems, load_rows

TASK = TASKS["tool_calling"]
CALL = {"name": "add", "parameters": {"a": 1, "b": [2, None]}}
API_BANK = {"system": "tools: add", "user": "1 and 2", "answer": str([CALL])}
TOOL = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"a": {"description": "one", "type": "int"}},
}
XLAM = {
    "query": "Add 1 and 2.",
    "tools": json.dumps([TOOL]),
    "answers": json.dumps([{"name": "add", "arguments": CALL["parameters"]}]),
}

FUNCTIONS = [
    {
        "name": "Albums (All Time)",
        "description": "Lists albums.",
        "parameters": {"type": "dict", "properties": {"from": {"type": "string"}}},
        "required": None,
    },
    {"name": "news.latest", "description": "Latest news.", "parameters": {}},
]
SYSTEM = (
    "Answer in the form [func_name1(params_name1=params_value1)]. Here are functions in JSON:\n"
    f"{json.dumps(FUNCTIONS)}. \nShould you decide to call, NO other text.\n"
)
TOOLACE = {
    "system": SYSTEM,
    "conversations": [
        {"from": "user", "value": "Albums of the eighties, please."},
        {"from": "assistant", "value": '[Albums (All Time)(from="1980, (or) so", n=-1.5)]'},
        {"from": "tool", "value": '[{"results": []}]'},
        {"from": "assistant", "value": "There are none."},
        {"from": "user", "value": "And the news?"},
        {
            "from": "assistant",
            "value": "[news.latest(), news.latest(tags=['it\\'s', {\"a\": null}])]",
        },
    ],
}
SEAL_TOOL = {
    "api_name": "getX",
    "api_description": "Finds x",
    "field": "Maths",
    "parameters": {"y": {"type": "int", "description": "y"}},
    "required": ["y"],
    "responses": {"x": {"type": "int", "description": "x"}},
}
SEAL_CALLS = [
    {"api": "getX", "parameters": {"y": 1}, "responses": ["API_call_0"]},
    {"api": "getX", "parameters": {"y": "API_call_0"}, "responses": ["API_call_1"]},
]


def seal(query='Find "x" twice.', tools=(SEAL_TOOL,), calls=SEAL_CALLS):
    told = f'Choose.\n\nInput:\napi_list = {list(tools)}\ntask_instruction = "{query}"\nOutput:\n'
    return {
        "id": "dev-easy-0",
        "conversations": [{"from": "human", "value": told}, {"from": "gpt", "value": str(calls)}],
    }


def gold_of(sample):
    """Return the gold completion of a problem, and its scores."""
    gold = TASK.gold_completion(sample.reference)
    return gold, [reward.function(gold, sample.reference) for reward in TASK.rewards]


def scores(row):
    sample = TASK.read_row(row)
    return sample, *gold_of(sample)


def contents_of(sample):
    return (message["content"] for message in sample.prompt)


@pytest.mark.parametrize(
    "row", [API_BANK, {**API_BANK, "answer": [CALL]}, XLAM, {**XLAM, "tools": [TOOL]}]
)
def test_calls_become_a_gold_text_that_gets_the_maximum(row):
    sample, gold, values = scores(row)
    assert values == [1, 3]
    assert json.dumps(CALL) in gold
    assert [message["role"] for message in sample.prompt] == ["system", "user"]


ADD = {"name": "add", "arguments": {"b": [2, 3]}}
TOOLRL = {
    "prompt": [{"role": "system", "content": "tools"}, {"role": "user", "content": "Add."}],
    "reward_model": {"ground_truth": "<think>so</think>\n<response>No.</response>"},
}


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("tool_calling", TOOLRL),
        ("tool_calling", {**API_BANK, "answer": [{"name": "add", "parameters": {"b": [2, 3]}}]}),
        (
            "tool_calling",
            {**XLAM, "tools": [TOOL], "answers": [ADD]},
        ),
        ("tool_calling", TOOLACE),
        ("tool_calling", seal()),
        ("coding", {**MBPP, "text": "Double it."}),
        ("coding", EURUS),
        ("coding", {**APPS, **CONTESTS}),
    ],
)
def test_rows_of_a_data_frame_are_those_of_its_file(task, row, saved):
    """pandas turns nested lists of a parquet file into arrays."""
    path = saved("rows.parquet", [row])
    (framed,) = pd.read_parquet(path).to_dict("records")
    assert any(isinstance(value, np.ndarray | dict) for value in framed.values())
    (plain,) = load_rows(path)
    assert TASKS[task].read_row(framed) == TASKS[task].read_row(plain)


def test_a_row_that_is_nested_too_deeply_is_told():
    answer = json.loads("[" * 900 + "]" * 900)
    with data_error("nested too deeply"):
        TASK.read_row({**API_BANK, "answer": answer})


def test_a_dialogue_of_api_bank_is_taken_as_it_is():
    assert TASK.read_row(API_BANK).prompt == [
        {"role": "system", "content": "tools: add"},
        {"role": "user", "content": "1 and 2"},
    ]


def test_tools_of_xlam_are_listed_in_toolrls_prompt():
    system, user = TASK.read_row(XLAM).prompt
    assert "1. Name: add\nDescription: Adds." in system["content"]
    assert "<user> Add 1 and 2. </user>" in user["content"]


def test_where_no_tool_fits_a_response_is_wanted():
    sample, gold, (in_format, correct) = scores({**XLAM, "answers": "[]"})
    assert (in_format, correct) == (1, None)
    assert "<tool_call>" not in gold
    assert TASK.rewards[0].function(scores(XLAM)[1], sample.reference) == 0


def with_answer(text, **changes):
    turns = [{"from": "user", "value": "Hi?"}, {"from": "assistant", "value": text}]
    return {**TOOLACE, "conversations": turns, **changes}


def test_the_last_turn_of_toolace_is_wanted_and_the_others_are_the_dialogue():
    sample, gold, values = scores(TOOLACE)
    assert values == [1, 3]
    assert '{"name": "news.latest", "parameters": {}}' in gold
    assert json.dumps({"tags": ["it's", {"a": None}]}) in gold
    system, user = contents_of(sample)
    assert "1. Name: Albums (All Time)\nDescription: Lists albums." in system
    call = {"name": "Albums (All Time)", "parameters": {"from": "1980, (or) so", "n": -1.5}}
    assert f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n<obs> [{{" in user
    assert user.endswith("<user> And the news? </user>")
    assert "<response> There are none. </response>" in user


def test_an_answer_of_toolace_without_a_call_is_a_response():
    for text in ("None of them fits.", "[See](https://x) for that.", "[]"):
        _, gold, values = scores(with_answer(text))
        assert values == [1, None]
        assert gold.endswith(f"<response> {text} </response>")


def test_what_toolace_says_after_its_calls_is_a_response_as_well():
    _, gold, values = scores(with_answer("[news.latest()] Let me see."))
    assert values == [1, 3]
    assert gold.endswith("</tool_call>\n<response> Let me see. </response>")


def test_what_follows_the_last_turn_of_the_assistant_is_left_out():
    turns = [*TOOLACE["conversations"], {"from": "tool", "value": "[]"}]
    assert TASK.read_row({**TOOLACE, "conversations": turns}) == TASK.read_row(TOOLACE)


def test_seal_tools_rows_name_what_earlier_calls_give_back():
    sample, gold, values = scores(seal())
    assert values == [1, 3]
    assert '{"name": "getX", "parameters": {"y": "API_call_0"}}' in gold
    system, user = contents_of(sample)
    assert "1. Name: getX\nDescription: Finds x. Gives back: x." in system
    assert "API_call_0, API_call_1 and so on" in user
    assert user.endswith('<user> Find "x" twice. </user>')


HALF = {"from": "user", "value": None}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (with_answer("[f(1)]"), r"conversations\[1\]\.value': an argument"),
        (with_answer("[f(a=__import__('os'))]"), " Call;"),
        (with_answer("[f(a=1, a=2)]"), "an argument"),
        (with_answer("[f(a=1"), r"\(a=1"),
        (with_answer("[f(a=1)"), "comma"),
        (with_answer("[f(a=1) or 2]"), "comma"),
        (with_answer("[f(a=1), ]"), r"name\(parameter=value"),
        (with_answer("[f(a=" + "[" * 40 + "]" * 40 + ")]"), "brackets .* 32"),
        (with_answer(f"[f(a='{'x' * 100_000}')]"), "100,009 characters"),
        (with_answer("Hi", system="No functions."), "column 'system'"),
        (with_answer("Hi", conversations=[HALF]), r"conversations\[0\]' .*'from'"),
        (with_answer("Hi", conversations=[]), "assistant"),
        (with_answer("Hi", conversations="Hi"), "column 'conversations'"),
        (with_answer("Hi", system=f'{SYSTEM[:9]} [{{"name": "f", "descr'), "column 'system'"),
        (seal(calls="[{"), r"conversations\[1\]\.value'"),
        (seal(calls=[{"api": 1}]), r"value\[0\]' .*'api'"),
        (seal(tools=[{}]), "api_list: column 'api_name'"),
        (
            seal() | {"conversations": [{"from": "gpt", "value": "[]"}]},
            "'conversations' .*human.* gpt",
        ),
        (
            seal() | {"conversations": [{"from": w, "value": "[]"} for w in ("human", "gpt")]},
            r"'conversations\[0\]\.value' .*api_list",
        ),
        ({**API_BANK, "answer": "[__import__('os')]"}, "column 'answer'"),
        ({**API_BANK, "answer": "[" * 5000}, "column 'answer'"),
        ({**API_BANK, "answer": "{'name': 'add'}"}, "column 'answer'"),
        ({**API_BANK, "answer": "[{'name': 'add'}]"}, r"column 'answer\[0\]' .*'name'"),
        ({**XLAM, "answers": "[1"}, "column 'answers'"),
        ({**XLAM, "answers": '[{"name": 1, "arguments": {}}]'}, r"column 'answers\[0\]'"),
        ({**XLAM, "tools": "{}"}, "column 'tools'"),
        ({**XLAM, "tools": '[{"name": "add"}]'}, "tool 1 .*description, parameters"),
    ],
)
def test_what_cannot_be_read_is_named(row, message):
    with data_error(message):
        TASK.read_row(row)


def test_rows_that_cannot_be_used_are_counted_and_the_first_ones_named(saved):
    rows = [XLAM, TOOLACE, seal(), with_answer("[f("), {"text": "a"}, *[seal(calls="[")] * 5]
    path = saved("mixed.jsonl", rows)
    message = refusal(load_problems, TASK, path, error=DataError)
    assert message.startswith(f"{path}: 7 of 10 rows cannot be used:")
    assert "line 4: column 'conversations[1].value': " in message
    assert "line 5: task 'tool_calling' needs column" in message
    assert "line 8: " in message
    assert "line 9: " not in message
    assert message.endswith("and 2 more")
    assert len(load_problems(TASK, saved("mixed.jsonl", rows[:3]))) == 3


def test_every_row_of_api_bank_is_read_and_its_answer_gets_the_maximum(real):
    samples = load_problems(TASK, real("tools/api_bank_level1.json.gz"))
    assert len(samples) == 399
    for sample in samples:
        assert gold_of(sample)[1] == [1, 3]


def published(row, tools):
    """Return a Seal-Tools row in the format of its fine-tuning files, with its tools."""
    listed = [tools[name] for name in dict.fromkeys(call["api"] for call in row["calling"])]
    return seal(row["query"], listed, row["calling"])


def test_every_row_of_seal_tools_is_read_and_its_answer_gets_the_maximum(real):
    tools = {t["api_name"]: t for t in load_rows(real("tools/seal_tools_tools.jsonl.gz"))}
    rows = load_rows(real("tools/seal_tools_dev.jsonl.gz"))
    for row in rows:
        *_, values = scores(published(row, tools))
        assert values == [1, 3]
    assert len(rows) == 700


HAMMER_CALLS = [{"name": "add", "arguments": {"a": 1}}]
HAMMER_HEAD = f"""\
[BEGIN OF TASK INSTRUCTION]
You are a tool calling assistant.
[END OF TASK INSTRUCTION]

[BEGIN OF AVAILABLE TOOLS]
{json.dumps([{**TOOL, "return": {"sum": {"type": "int"}}}])}
[END OF AVAILABLE TOOLS]

[BEGIN OF FORMAT INSTRUCTION]
The output is JSON.
[END OF FORMAT INSTRUCTION]

"""
HAMMER = {
    "instruction": f"{HAMMER_HEAD}[BEGIN OF QUERY]\nUser: Add one.\nGenerate API Request:\n\n"
    "[END OF QUERY]\n\n",
    "input": "",
    "output": f"```\n{json.dumps(HAMMER_CALLS)}\n```",
}
HAMMER_TURNS = [
    ("user", "Add one."),
    ("agent", "To what?"),
    ("user", "You know."),
    ("assistant", '```[{"name": "look", "arguments": {}}]```'),
    ("tool", "{'one': 1}"),
]
HAMMER_2_1 = {
    **HAMMER,
    "instruction": f"<|im_start|>user\n{HAMMER_HEAD}<|im_end|>\n"
    + "".join(f"<|im_start|>{who}\n{said}<|im_end|>\n" for who, said in HAMMER_TURNS),
}
HAMMER_ORIGINAL = {
    "query": [{"role": who, "content": said} for who, said in HAMMER_TURNS],
    "tools": [TOOL],
    "answers": HAMMER_CALLS,
}
HAMMER_SEAL = {
    "query": "Add one.",
    "tools": [{**TOOL, "required": ["a"]}],
    "answers": [{"tool": "add", "parameters": {"a": 1}}],
}
HAMMER_DIALOGUE = """\
**Dialogue Records History**
<user> Add one. </user>

<think> What is needed for an answer is at hand. </think>
<response> To what? </response>

<user> You know. </user>

<think> The tools and what they need are at hand. </think>
<tool_call>
{"name": "look", "parameters": {}}
</tool_call>
<obs> {'one': 1} </obs>"""


@pytest.mark.parametrize("row", [HAMMER, HAMMER_2_1, HAMMER_ORIGINAL, HAMMER_SEAL])
def test_hammers_layouts_become_toolrls_prompt_and_gold_text(row):
    sample = TASK.read_row(row)
    system, user = contents_of(sample)
    assert "1. Name: add\nDescription: Adds.\nParameters: {" in system
    assert "You are a tool calling assistant" not in system + user
    assert '{"name": "add", "parameters": {"a": 1}}\n</tool_call>' in sample.reference["output"]
    assert all(
        r.function(sample.reference["output"], sample.reference) == r.high for r in TASK.rewards
    )


@pytest.mark.parametrize("row", [HAMMER_2_1, HAMMER_ORIGINAL])
def test_who_said_what_in_hammers_dialogues_stays_apart(row):
    assert TASK.read_row(row).prompt[1]["content"] == HAMMER_DIALOGUE


def test_hammers_query_in_one_text_is_a_turn_of_the_user():
    assert TASK.read_row(HAMMER).prompt[1]["content"].endswith("\n<user> User: Add one. </user>")


def test_no_call_in_hammers_rows_is_a_response():
    sample = TASK.read_row({**HAMMER, "output": "```\n[]\n```"})
    assert "<response> None of the tools can do that. </response>" in sample.reference["output"]


def test_needed_parameters_are_told_where_hammer_lists_them():
    system = TASK.read_row(HAMMER_SEAL).prompt[0]["content"]
    assert '"required": ["a"]}' in system


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"instruction": "Add one."}, "'instruction' .*[BEGIN OF AVAILABLE TOOLS]"),
        ({"instruction": HAMMER_HEAD}, "column 'instruction'"),
        ({"output": "```\nadd(1)\n```"}, "column 'output'"),
        ({"instruction": HAMMER["instruction"].replace("[{", "[", 1)}, "column 'instruction'"),
    ],
)
def test_what_is_wrong_in_hammers_rows_is_named(changed, said):
    with data_error(said.replace("[", r"\[")):
        TASK.read_row({**HAMMER, **changed})
