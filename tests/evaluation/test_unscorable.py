"""Rows that no response can pass count as wrong and are named. Rows that another measure scores are
excluded, and the table shows how many remain."""

import pytest
from tests.evaluation.conftest import written

from gdpo.cli import main
from gdpo.errors import ConfigError
from gdpo.lab.evaluation.benchmarks import find_benchmark, rewards_of
from gdpo.lab.evaluation.evaluation import read_results, result_of
from gdpo.lab.evaluation.sanity import sanity
from gdpo.lab.tasks.tool_calling.prompt import write_completion
from gdpo.rollouts import read_rollouts

MATHS = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate(["2", "f(0,4]", "3"])]
CALL = write_completion("so", [{"name": "add", "parameters": {"a": 1}}])
TALK = write_completion("so", response="hello")
TOOLS = [
    {"instruction": "Tools.", "input": f"{i}", "output": o} for i, o in enumerate([CALL, TALK])
]


def evaluated(tmp_path, name, rows, capsys):
    file = written(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(SystemExit) as left:
        main([
            *("evaluate", "gold", "--benchmarks", name, "--data", f"{name}={file}"),
            *("--output", str(tmp_path / "out")),
        ])  # fmt: skip
    assert not left.value.code
    [result] = read_results(tmp_path / "out")
    return result, " ".join(capsys.readouterr().out.split())


def test_a_row_that_no_response_can_pass_counts_as_wrong_and_is_named(tmp_path, capsys):
    result, printed = evaluated(tmp_path, "math500", MATHS, capsys)
    assert result.problems == result.estimates["correct"].problems == 3
    assert result.of_problems["correct"] == [1, 0, 1]
    assert result.unscorable == {"correct": [2]}
    assert "math500: 1 of 3 problems" in printed
    assert "(problem 2)" in printed
    assert "other problems is 1.000" in printed


def test_a_row_without_an_answer_counts_as_wrong(tmp_path, capsys):
    rows = [MATHS[0], {"problem": "9?", "answer": None}]
    result, _ = evaluated(tmp_path, "math500", rows, capsys)
    assert result.estimates["correct"].mean == 0.5


def test_a_measure_for_some_rows_shows_their_number(tmp_path, capsys):
    result, printed = evaluated(tmp_path, "tool_calling", TOOLS, capsys)
    assert result.estimates["correct"].problems == 1
    assert result.estimates["format"].problems == 2
    assert result.unscorable == {}
    assert "1 of 2 │ │ correct │ 3.000" in printed
    assert "count as wrong" not in printed


def test_the_card_of_a_model_names_the_rows(tmp_path, capsys):
    from gdpo.lab.evaluation.evaluation import Settings
    from gdpo.lab.evaluation.responders import Sampling
    from gdpo.lab.evaluation.tables import add_to_readme

    result, _ = evaluated(tmp_path, "math500", MATHS, capsys)
    readme = tmp_path / "README.md"
    readme.write_text("# run\n")
    add_to_readme(readme, [result], Settings("gold", Sampling(), 4000))
    assert "(problem 2)" in readme.read_text()


def test_rows_that_expect_no_call_do_not_fail_a_benchmark(tmp_path, capsys):
    file = written(tmp_path / "tools.jsonl", TOOLS)
    found = sanity(find_benchmark("tool_calling", file))
    assert (found.exceptions, found.applies, found.sane) == ((), {"correctness": 1}, True)
    with pytest.raises(SystemExit) as left:
        main(["check", "--benchmarks", "tool_calling", "--data", f"tool_calling={file}"])
    assert not left.value.code
    assert "2 of 2, correctness applies to 1;" in capsys.readouterr().out


def test_a_benchmark_in_which_nothing_is_scored_fails(tmp_path):
    file = written(tmp_path / "tools.jsonl", TOOLS[1:])
    assert not sanity(find_benchmark("tool_calling", file)).sane


def test_responses_scored_by_other_rewards_are_refused(tmp_path, capsys):
    evaluated(tmp_path, "math500", MATHS, capsys)
    [file] = (tmp_path / "out" / "math500").iterdir()
    rewards = rewards_of(find_benchmark("gsm8k", None), 4000)
    with pytest.raises(ConfigError, match="correctness, integer"):
        result_of("math500", rewards, list(read_rollouts(file)))
