import hashlib
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import data_error

from gdpo.lab.tasks import TASKS
from gdpo.lab.tasks.gsm8k import flexible_reward
from gdpo.testing import check_reward

TASK = TASKS["gsm8k"]
PUBLISHED = "052b47a0924f5f31d900e0397857996b1c0b58b6fefff62bc14dad1f5e66f390"
"""SYSTEM_PROMPT of trl-GDPO/open-r1/src/open_r1/gsm8k.py in NVlabs/GDPO, b080e63, 22 Nov 2026."""


def scored(name, completion, gold="72"):
    return TASK.reward(name).function(completion, {"answer": gold})


def answered(text):
    return f"<think>so</think>\n<answer>{text}</answer>"


RIGHT = answered("72")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("72", "72"),
        (" 72\n", "72"),
        ("72.", "72"),
        ("72.0", "72"),
        ("72.000", "72"),
        ("072", "72"),
        ("+72", "72"),
        ("$72", "72"),
        ("$ 72.00", "72"),
        ("€72", "72"),
        ("72%", "72"),
        ("72 %", "72"),
        ("2125", "2,125"),
        ("2,125", "2125"),
        ("$2,125.00", "2,125"),
        ("1000000", "1,000,000"),
        ("-7", "-7"),
        ("−7", "-7"),
        ("–7", "-7"),
        ("72€", "72"),
        ("72 $", "72"),
        ("-$7", "-7"),
        ("-7.0", "-7"),
        ("0", "-0"),
        (".5", "0.5"),
        ("1/2", "1/2"),
        ("1e3", "1e3"),
        ("x + 1", "x + 1"),
        ("9" * 98, "9" * 98 + ".0"),
    ],
)
def test_an_equal_number_or_an_equal_text_is_correct(answer, gold):
    assert scored("correctness", answered(answer), gold) == 1


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("73", "72"),
        ("-72", "72"),
        ("7", "-7"),
        ("7.2", "72"),
        ("7,2", "72"),
        ("72,", "72"),
        ("2,12,5", "2125"),
        ("2.125", "2,125"),
        ("2 125", "2125"),
        ("72 eggs", "72"),
        ("72 dollars", "72"),
        ("**72**", "72"),
        (r"\boxed{72}", "72"),
        ("—72", "72"),
        ("x = 72", "72"),
        ("144/2", "72"),
        ("1/2", "0.5"),
        ("1/3", "1/2"),
        ("7.2e1", "72"),
        ("1e999999999", "72"),
        ("72..", "72"),
        ("--72", "72"),
        ("٧٢", "72"),
        ("seventy-two", "72"),
        ("NaN", "72"),
        ("", "72"),
        ("$", "72"),
        ("-", "72"),
        ("9" * 28 + "1", "9" * 28 + "2"),  # beyond Decimal's precision
    ],
)
def test_another_number_and_what_is_no_number_is_not_correct(answer, gold):
    assert scored("correctness", answered(answer), gold) == 0


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("72", 1),
        (" 72 \n", 1),
        ("<answer>72", 1),
        ("72</answer> and more", 1),
        ("I write <answer> and <answer>72</answer>", 1),
        ("<answer>72</answer><answer>73</answer>", 0),
        ("<answer>73</answer><answer>72</answer>", 1),
        ("<answer>73</answer> 72", 0),
        ("the answer is 72", 0),
    ],
)
def test_the_answer_is_the_last_one_or_else_the_whole_completion(completion, expected):
    assert scored("correctness", completion) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("72", 1),
        ("73", 1),  # whether it is right is not asked
        (" 72 ", 1),
        ("-7", 1),
        ("−7", 1),
        ("–7", 1),
        ("+7", 1),
        ("1,080", 1),
        ("109,200,000", 1),
        ("007", 1),
        ("9" * 10_000, 1),
        ("", 0),
        ("-", 0),
        ("72.0", 0),
        ("72.", 0),
        ("$72", 0),
        ("72%", 0),
        ("1,08", 0),
        ("1080,000", 0),
        ("1 080", 0),
        ("7²", 0),
        ("٧٢", 0),
        ("7\n2", 0),
        ("seven", 0),
    ],
)
def test_integer_is_about_how_the_answer_is_written(answer, expected):
    assert scored("integer", answered(answer)) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (RIGHT, 1),
        (answered("any words"), 1),
        (f"\n {RIGHT} \n\n", 1),
        (RIGHT.replace("\n", ""), 1),
        (RIGHT.replace("\n", "\n\n"), 1),
        (RIGHT.replace("so", "I end in <answer>72</answer>"), 1),
        (RIGHT.replace("so", "<think> so"), 1),
        ("", 0),
        ("72", 0),
        (answered(""), 0),
        (answered(" \n"), 0),
        (answered("\u200b"), 0),
        (answered("\x00"), 0),
        (RIGHT.replace("so", "\u200b\u2060"), 0),
        (answered("?").replace("so", "…"), 1),
        (RIGHT.replace("so", " "), 0),
        (RIGHT.replace("<think>", ""), 0),
        (RIGHT.replace("</think>", ""), 0),
        (RIGHT.replace("<answer>", ""), 0),
        (RIGHT.replace("</answer>", ""), 0),
        (f"Well: {RIGHT}", 0),
        (f"{RIGHT} Done.", 0),
        (RIGHT.replace("</think>", "</think> and so </think>"), 0),
        (f"{RIGHT}<answer>73</answer>", 0),
        (answered("<answer>72"), 0),
        (answered("72</answer>"), 0),
        (answered("72<think>"), 0),
        ("<think>so</think><answer>", 0),
        ("<answer>72</answer>\n<think>so</think>", 0),
    ],
)
def test_format_is_one_thinking_and_one_answer_that_hold_something(completion, expected):
    assert scored("format", completion) == expected


@pytest.mark.parametrize(
    "completion",
    [
        "<answer>" * 200_000,
        "</answer>" * 200_000,
        "<think>" * 200_000,
        answered("9" * 2_000_000),
        answered("1" + ",111" * 500_000 + "x"),
        answered("1," * 500_000),
        answered("-" * 500_000),
        answered("1e999999999"),
        answered("$" + " " * 500_000 + "x"),
        "<think>a</think>" + "\n " * 500_000,
        "\x00\x1b\ud800" * 100_000,
    ],
    ids=range(11),
)
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_compatible"])
def test_hostile_completions_cost_next_to_nothing(name, completion):
    start = process_time()
    for reward in TASKS[name].rewards:
        assert reward.function(completion, {"answer": "72"}) in (0, 1)
    assert process_time() - start < 2


def test_a_row_gives_the_question_and_the_number_after_the_hashes():
    sample = TASK.read_row({"question": "6 x 12?", "answer": "6 x 12 = 72\n####  72 \n"})
    assert sample.reference == {"answer": "72"}
    assert [m["role"] for m in sample.prompt] == ["system", "user"]
    assert sample.prompt[1]["content"] == "6 x 12?"
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert tag in sample.prompt[0]["content"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "answer": "72"}, "column 'answer' .*'####'.*'72'"),
        ({"question": "a", "answer": "so #### "}, "column 'answer' .*'####'"),
        ({"question": "a", "answer": None}, "column 'answer' .*got nothing"),
        ({"question": 3, "answer": "#### 1"}, "column 'question' .*got int 3"),
    ],
)
def test_a_row_that_cannot_be_used_names_its_column(row, message):
    with data_error(message):
        TASK.read_row(row)


def flexible(completion, gold="72"):
    return flexible_reward.function(completion, {"answer": gold})


def test_the_flexible_measure_reads_all_that_follows_the_first_closing_tag():
    assert flexible("<think>7</think> 72 </think> so") == 1
    assert flexible("72 </think> 7 </think> so") == 0


@pytest.mark.slow
def test_the_flexible_measure_keeps_the_contract_of_a_reward_and_trains_nothing():
    check_reward(flexible_reward)
    assert TASK.reward("flexible") is None


@pytest.mark.parametrize(
    "completion",
    [
        RIGHT,
        "<think>so</think>\n<answer>She has 72 eggs.</answer> Check: 70 + 3",
        "So the answer is \\boxed{72}.\n\nThat is 12 of each of 6 kinds.",
        r"\boxed{70} and then \boxed{\$72\text{ per day}}",
        "#### 72",
        "60 + 12 = **72**.",
        "60+12=72",
        "it takes $72.00 a day",
        "- 72",
    ],
)
def test_an_answer_in_another_form_is_right_by_the_flexible_measure_alone(completion):
    assert flexible(completion) == 1
    assert flexible(completion, "73") == 0


@pytest.mark.parametrize("number", ["2,125", "2{,}125", r"2\,125", "2125.0", "$2,125", r"\$2125"])
def test_the_flexible_measure_reads_numbers_as_people_and_latex_write_them(number):
    assert flexible(f"That makes {number}.", "2,125") == 1
    assert flexible(f"That makes -{number}.", "-2125") == 1


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "72", "7", ",", " "]
        )
    ).map("".join)
)
def test_what_is_correct_is_right_by_the_flexible_measure_too(completion):
    assert flexible(completion) >= scored("correctness", completion)


def test_the_compatible_task_asks_as_the_published_code_does():
    row = {"question": "1+1?", "answer": "#### 2"}
    ours, published = (
        TASKS[name].read_row(row).prompt[0]["content"] for name in ("gsm8k", "gsm8k_compatible")
    )
    assert published.startswith(
        "\nYou are a helpful AI assistant.\n\nFor every request, you should"
    )
    assert "provide the fianl answer in integer format.\n" in published
    assert published.endswith("4. The final answer can only be an integer.\n")
    assert hashlib.sha256(published.encode()).hexdigest() == PUBLISHED
    assert ours != published
