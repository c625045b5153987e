"""Tests `data.weights_column` of a recipe: each prompt has its own weights."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from tests.refusals import config_error, data_error, refusal

from gdpo.errors import DataError, GdpoError
from gdpo.integrations.trl._rewards import check_weights_column
from gdpo.lab.recipes.data import check_weights, read_data
from gdpo.lab.recipes.recipe import DataConfig
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.directory import digest_of, read_metrics
from gdpo.lab.tasks import TASKS, Problem, load_problems
from gdpo.lab.training import check, train
from gdpo.lab.training.preflight import prepare
from gdpo.lab.training.reward_checks import CheckResult, Level, check_rewards
from gdpo.rewards import Scorer
from gdpo.rewards.weights_column import weights_of_cells
from gdpo.rollouts import read_rollouts

NAMES = ("vowels", "brief", "format")
CONFIGURED = {"vowels": 1.0, "brief": 0.5, "format": 1.0}
CELLS = [
    {"vowels": 2.0, "format": 3},
    {"vowels": None, "brief": 4.0, "format": 0.0},
    None,
    {"brief": -1.0},
    {"vowels": 1, "brief": 1, "format": 1},
]
COLUMN = "data.weights_column=w"


def wanted(cell, name):
    """The weight that a rollout of this row has in the record; 0 where it does not apply."""
    return CONFIGURED[name] * (1 if cell is None else cell.get(name) or 0)


ROW = {"question": "1 + 1?", "answer": "So. #### 2"}
OWN = replace(
    TASKS["gsm8k"],
    columns=(("question",),),
    read_row=lambda row: Problem([{"role": "user", "content": row["question"]}], {}),
)


@pytest.mark.parametrize("task", [TASKS["gsm8k"], OWN])
def test_every_task_passes_the_cell_on_without_reading_it(saved, task):
    cells = [{"a": 2.0}, None, "not checked here"]
    file = saved("rows.jsonl", [{**ROW, "w": cell} for cell in cells])
    assert [p.weights for p in load_problems(task, file, weights_column="w")] == cells
    assert [p.weights for p in load_problems(task, file)] == [None] * 3


def test_a_parquet_file_has_the_same_cells(tmp_path):
    file = tmp_path / "rows.parquet"
    Dataset.from_list([{**ROW, "w": cell} for cell in CELLS]).to_parquet(file)
    data = DataConfig(source=str(file), weights_column="w")
    read = read_data(TASKS["gsm8k"], data)
    assert check_weights(read, "w", NAMES).endswith("vowels 3, brief 4, format 4")
    assert read.problems[2].weights is None


def test_a_check_counts_the_rows_with_weights_and_those_of_each_reward(load, weighted):
    weighted(*CELLS)
    findings = check(load(COLUMN))
    (found,) = [each for each in findings if "'w'" in each.text]
    assert found.level is Level.FINE
    assert "8 of 10 rows" in found.text
    assert "vowels 6, brief 8, format 8" in found.text
    assert not [each for each in check(load()) if "weights" in each.text]


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ({"vowel": 1.0}, "'vowel' is not a reward of this run: did you mean 'vowels'"),
        ({"brief": "much"}, "weight of 'brief' is 'much'"),
        ({"brief": 10**400}, "weight of 'brief' is 1000"),
        ([1.0, 0.5], "[1.0, 0.5] is not a mapping"),
        ({}, "{} gives no reward a weight"),
        ({"brief": None}, "{'brief': None} gives no reward a weight"),
        ({"brief": 1e308}, "{'brief': 1e+308} times the configured weights"),
        ({"brief": 8e29, "format": -8e29}, "exceeds 1e+30 in total"),
    ],
)
def test_a_wrong_cell_is_told_with_its_line_column_and_row(load, weighted, cell, told):
    rows = weighted(None, None, None, cell)
    recipe = load(COLUMN, "model=no/such-model")
    (found,) = [each for each in check(recipe) if "'w'" in each.text]
    assert found.level is Level.WRONG
    assert told in found.text
    assert "--set data.weights_column" in found.text
    assert f"column 'w', row 4 of {rows}" in found.text


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ({"a": np.float16(np.inf)}, "weight of 'a' is np.float16(inf)"),
        ({"a": np.complex64(1)}, "weight of 'a' is"),
        ({3: 1.0}, "3 is not a reward"),
    ],
)
def test_a_cell_from_another_library_is_checked_like_one_from_a_file(cell, told):
    read = partial(weights_of_cells, names=["a"], weights=[1.0], column="w")
    text = refusal(read, [cell], error=DataError)
    assert f"column 'w', row 0: {told}" in text.replace("the weight", "weight")
    np.testing.assert_array_equal(read([{"a": np.float16(2)}]), [[2.0]])


def test_a_column_that_trains_no_reward_is_an_error(load, weighted):
    weighted({"vowels": 0.0, "brief": None})
    with data_error(r"weights_column=w: column 'w': no row .*'vowels': 1.0"):
        prepare(resolve(load(COLUMN)))


def test_a_reward_that_the_column_gives_to_no_row_is_reported_as_such(load, weighted):
    weighted({"vowels": 1.0, "format": 1.0})
    findings = check(load(COLUMN))
    notes = [each.text for each in findings if each.level is Level.NOTE]
    (unused,) = [text for text in notes if "applies to no row" in text]
    assert "brief" in unused
    assert "column 'w'" in unused
    (untested,) = [text for text in notes if text.startswith("reward brief")]
    assert "applies to none of the tried rows (10)" in untested


def test_rows_without_the_column_are_counted_with_the_nearest_name(load, weighted):
    weighted(*CELLS, name="weight")
    with data_error("10 of 10 rows") as raised:
        prepare(resolve(load("data.weights_column=weights")))
    assert "did you mean 'weight'" in str(raised.value)


def only_lists(rewards, weights):
    return rewards @ weights.reshape(3)


def test_a_rule_that_takes_one_weight_per_reward_is_refused_early(load):
    own = f"advantage={__name__}:only_lists"
    resolve(load(own))
    with config_error(r"data\.weights_column: .*only_lists") as raised:
        resolve(load(own, COLUMN))
    assert COLUMN in str(raised.value)


def test_a_comparison_refuses_such_an_estimator_before_it_trains_another(load):
    shared = resolve(load(COLUMN))
    assert shared.under(shared.recipe.model_copy(update={"advantage": "grpo"}))
    with config_error(r"data\.weights_column: .*only_lists"):
        shared.under(shared.recipe.model_copy(update={"advantage": f"{__name__}:only_lists"}))


def test_the_digest_of_the_rows_contains_their_weights():
    plain = Problem([], {"answer": "1"})
    digests = {digest_of([replace(plain, weights=cell)]) for cell in (None, {}, {"a": 1.0})}
    assert len(digests) == 3
    assert digest_of([plain]) == "27dfa2be0e03"  # unchanged, so that runs can be resumed


def test_a_reward_need_not_reach_its_maximum_where_it_does_not_apply():
    task = TASKS["gsm8k"]
    correctness = task.reward("correctness")
    never = replace(correctness, function=lambda _text, _reference: 0.0, examples=())
    task = replace(task, rewards=(never,))
    samples = [Problem([], {"answer": "1"}, weights={"format": 1.0})] * 3
    with Scorer([never], on_error="missing") as scorer:
        applied, *_ = check_rewards(task, scorer, [replace(s, weights=None) for s in samples])
        finding, *_ = check_rewards(task, scorer, samples)
    assert isinstance(applied, GdpoError)
    assert isinstance(finding, CheckResult)


def test_a_bad_response_is_judged_only_by_the_rewards_that_apply_to_the_row():
    task = TASKS["gsm8k"]
    format_ = task.reward("format")
    lenient = replace(format_, function=lambda _text, _reference: 1.0, examples=())
    correctness = task.reward("correctness")
    task = replace(task, rewards=(correctness, lenient))
    samples = [Problem([], {"answer": "1"}, weights=cell) for cell in (None, {"format": 1.0})]
    with Scorer(task.rewards, on_error="missing") as scorer:
        *_, finding = check_rewards(task, scorer, samples)
    assert isinstance(finding, GdpoError)
    assert "row 2" in str(finding)


def test_the_trainer_reads_a_column_that_a_transform_creates_with_the_rows():
    data = Dataset.from_dict({"row": [0]}).with_transform(lambda batch: {"w": [None]})
    check_weights_column({"train_dataset": data}, "w", ["a"])
    with config_error("'w'"):
        check_weights_column({"train_dataset": Dataset.from_dict({"row": [0]})}, "w", ["a"])


@pytest.mark.slow
def test_a_run_trains_each_prompt_with_the_column_times_the_configured_weights(
    load, weighted, saved
):
    rows = weighted(*CELLS)
    cells = {
        json.loads(line)["question"]: json.loads(line)["w"] for line in rows.read_text().split("\n")
    }
    plain = saved("eval.jsonl", [{"question": "What is 1 + 2?", "answer": "#### 3"}])
    changes = [COLUMN, "trainer.max_steps=2", f"eval_data={{source: {plain}}}"]
    run = train(load(*changes, "trainer.eval_steps=1")).run
    seen = 0
    for file in sorted(run.rollouts.glob("*.parquet")):
        for rollout in read_rollouts(file):
            asked = rollout.prompt[-1]["content"]
            evaluated = asked not in cells
            cell = None if evaluated else cells[asked]
            assert rollout.weights == {name: wanted(cell, name) for name in NAMES}
            for name in NAMES:
                missing = cell is not None and cell.get(name) is None
                assert (rollout.rewards[name] is None) == missing
            seen += 1 - evaluated
    assert seen == 16
    assert any(np.isfinite(row.get("eval_reward", np.nan)) for row in read_metrics(run))
