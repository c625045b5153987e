"""Rows that no response can pass count as wrong and are named. Rows that another measure scores are
excluded, and the table shows how many remain."""

import io
from contextlib import redirect_stdout

import pytest
from tests.evaluation.conftest import written
from tests.refusals import config_error

from gdpo.cli import main
from gdpo.lab.evaluation.benchmarks import find_benchmark, rewards_of
from gdpo.lab.evaluation.evaluation import read_results, result_of
from gdpo.lab.evaluation.sanity import sanity
from gdpo.lab.tasks.tool_calling.prompt import write_completion
from gdpo.rollouts import read_rollouts

ANSWERS = ["2", "f(0,4]", "3", None]
MATHS = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate(ANSWERS)]
CALL = write_completion("so", [{"name": "add", "parameters": {"a": 1}}])
TALK = write_completion("so", response="hello")
TOOLS = [
    {"instruction": "Tools.", "input": f"{i}", "output": o} for i, o in enumerate([CALL, TALK])
]


def evaluated(folder, name, rows):
    file = written(folder / f"{name}.jsonl", rows)
    printed = io.StringIO()
    with pytest.raises(SystemExit) as left, redirect_stdout(printed):
        main([
            *("evaluate", "gold", "--benchmarks", name, "--data", f"{name}={file}"),
            *("--output", str(folder / "out")),
        ])  # fmt: skip
    assert not left.value.code
    [result] = read_results(folder / "out")
    return result, " ".join(printed.getvalue().split())


@pytest.fixture(scope="module")
def maths(tmp_path_factory):
    """The folder, the result and the output of an evaluation on rows without a usable answer."""
    folder = tmp_path_factory.mktemp("maths")
    return folder, *evaluated(folder, "math500", MATHS)


def test_a_row_that_no_response_can_pass_counts_as_wrong_and_is_named(maths):
    _, result, printed = maths
    assert result.problems == result.estimates["correct"].problems == 4
    assert result.of_problems["correct"] == [1, 0, 1, 0]
    assert result.unscorable == {"correct": [2, 4]}
    assert "math500: 2 of 4 problems" in printed
    assert "(problems 2, 4)" in printed
    assert "other problems is 1.000" in printed


def test_a_measure_for_some_rows_shows_their_number(tmp_path):
    result, printed = evaluated(tmp_path, "tool_calling", TOOLS)
    assert result.estimates["correct"].problems == 1
    assert result.estimates["format"].problems == 2
    assert result.unscorable == {}
    assert "1 of 2 │ │ correct │ 3.000" in printed
    assert "count as wrong" not in printed


def test_the_card_of_a_model_names_the_rows(saved, maths):
    from gdpo.lab.evaluation.evaluation import EvaluationSettings
    from gdpo.lab.evaluation.responders import Sampling
    from gdpo.lab.evaluation.tables import add_to_readme

    _, result, _ = maths
    readme = saved("README.md", "# run\n")
    add_to_readme(readme, [result], EvaluationSettings("gold", Sampling(), 4000))
    assert "(problems 2, 4)" in readme.read_text()


def test_rows_that_expect_no_call_do_not_fail_a_benchmark(tmp_path, gdpo_says):
    file = written(tmp_path / "tools.jsonl", TOOLS)
    found = sanity(find_benchmark("tool_calling", file))
    assert (found.exceptions, found.applies, found.sane) == ((), {"correctness": 1}, True)
    data = f"tool_calling={file}"
    code, out, _ = gdpo_says("check", "--benchmarks", "tool_calling", "--data", data)
    assert code == 0
    assert "2 of 2, correctness applies to 1;" in out


def test_a_benchmark_in_which_nothing_is_scored_fails(tmp_path):
    file = written(tmp_path / "tools.jsonl", TOOLS[1:])
    assert not sanity(find_benchmark("tool_calling", file)).sane


def test_responses_scored_by_other_rewards_are_refused(maths):
    [file] = (maths[0] / "out" / "math500").iterdir()
    rewards = rewards_of(find_benchmark("gsm8k", None), 4000)
    with config_error("correctness, integer"):
        result_of("math500", rewards, list(read_rollouts(file)))
