"""Rows come from one source or several."""

import pytest
from tests.refusals import config_error, data_error

from gdpo.lab.recipes.data import read_data
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.recipe import DataConfig
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.lock import unlock
from gdpo.lab.runs.summary import readme
from gdpo.lab.tasks import TASKS
from gdpo.lab.training import check
from gdpo.lab.training.preflight import prepare
from gdpo.lab.training.reward_checks import CheckResult, Level
from gdpo.lab.training.run import _open

TASK = TASKS["gsm8k"]


@pytest.fixture
def two(saved):
    """Two files with 3 and 4 rows."""
    questions = {
        "a.jsonl": ["What is 1 + 1?", "What is 2 + 2?", "What is 3 + 3?"],
        "b.jsonl": ["What is 1 + 1?", "What is 4 + 4?", "What is 5 + 5?", "What is 6 + 6?"],
    }
    return [
        str(saved(name, [{"question": text, "answer": "So it is. #### 2"} for text in asked]))
        for name, asked in questions.items()
    ]


def test_all_rows_of_several_sources_come_in_order(two):
    rows = read_data(TASK, DataConfig(source=tuple(two)))
    asked = [sample.prompt[1]["content"] for sample in rows.problems]
    assert asked == [f"What is {i} + {i}?" for i in (1, 2, 3, 1, 4, 5, 6)]
    assert rows.places[-1] == f"row 4 of {two[1]}"
    assert rows.read == {two[0]: 3, two[1]: 4}


def test_the_limit_counts_for_each_source(two):
    rows = read_data(TASK, DataConfig(source=tuple(two), limit=1))
    assert rows.read == {two[0]: 1, two[1]: 1}


def test_a_mistake_names_the_source(two, saved):
    for text, message in (("", "has no rows"), ('{"question": 1', "line 1")):
        bad = saved("bad.jsonl", text)
        with data_error(f"{bad}.*{message}"):
            read_data(TASK, DataConfig(source=(two[0], str(bad))))


def test_a_check_tells_how_many_rows_each_source_has(load, two):
    recipe = load(f"data.source=[{', '.join(two)}]")
    findings = check(recipe)
    levels = {finding.text: finding.level for finding in findings}
    assert levels[f"data: task gsm8k can read all 3 rows of {two[0]}"] is Level.FINE
    assert levels[f"data: task gsm8k can read all 4 rows of {two[1]}"] is Level.FINE


def test_a_further_check_sees_the_rows_and_a_mistake_of_its_is_counted(recipe):
    def refuse(task, rows):
        yield CheckResult(Level.WRONG, f"{task.name}: {rows.places[9].rpartition(' of ')[0]}")

    assert CheckResult(Level.WRONG, "gsm8k: row 10") in check(recipe, also=refuse)


@pytest.mark.parametrize("value", ["[]", "3", "{a: b}", "[a.json, 3]"])
def test_a_source_that_is_neither_text_nor_texts_is_refused(load, value):
    with config_error(r"data\.source"):
        load(f"data.source={value}")


def test_a_run_names_its_sources(load, two):
    job = prepare(resolve(load(f"data.source=[{', '.join(two)}]")))
    run = _open(job, resume=False, from_scratch=False).facts.run
    unlock(run.path)
    again = load_recipe(run.path)
    assert again.data.sources == tuple(two)
    assert f"trained on {two[0]}, {two[1]} with" in readme(again, {}, (), steps=1)
