"""Rewards scored anew from the texts of a dump, with the reference that it has, or none."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.refusals import config_error
from tests.rollouts.built import rollout
from tests.rollouts.readers import written

from gdpo.analysis import Rescorer
from gdpo.analysis.rescore import NO_REFERENCE, NO_TEXT, NO_TOKENS
from gdpo.rewards import Reward
from gdpo.rewards.length import token_limit
from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import RolloutText, read_rollout_files

RIGHT, WRONG = "<think>a</think>\n<answer>4</answer>", "5"

size = Reward("size", lambda completion, _: min(len(completion), 9), low=0, high=9)
both = [size, token_limit(3)]
letters = Reward("letters", lambda m, _: len(m[-1]["content"]), low=0, high=9, of="turn")
nothing = 3


def read(path, name, **options):
    with Rescorer(name) as rescorer:
        reading = read_rollout_files(path, rescore=rescorer, **options)
        tables = list(reading)
    return tables, reading.report


OF_RIGHT_AND_WRONG = [[1, 1, 1], [0, 1, 0]]


def told(report):
    """Return the line and the number of rows of each notice."""
    return {notice.what: (notice.line, notice.count) for notice in report.notices.values()}


def verl_v1(path, truth):
    record = {"input": "2+2", "gts": truth, "score": 0.5, "step": 1}
    uids = [f"p_1_{i}_0" for i in range(2)]
    texts = (RIGHT, WRONG)
    return written.lines(
        path, [{**record, "output": t, "uid": u} for t, u in zip(texts, uids, strict=True)]
    )


@pytest.mark.parametrize("truth", ["4", 4, {"answer": "4"}, '{"answer": "4"}'])
def test_a_dump_with_a_total_alone_gets_its_components_back(tmp_path, truth):
    (table,), report = read(verl_v1(tmp_path / "1.jsonl", truth), "gsm8k")
    assert table.names == ("correctness", "integer", "format")
    assert table.rewards.tolist() == OF_RIGHT_AND_WRONG
    assert table.total.tolist() == [0.5, 0.5]
    assert report.files[0].given.rewards.how() == "rescored"
    assert not report.notices


@pytest.mark.parametrize("truth", [None, True])
def test_where_the_dump_has_no_reference_it_is_said_and_the_rest_is_scored(tmp_path, truth):
    (table,), report = read(verl_v1(tmp_path / "1.jsonl", truth), "gsm8k")
    assert_array_equal(table.rewards, [[np.nan, 1, 1], [np.nan, 1, 0]])
    found = told(report)
    assert found[NO_REFERENCE] == (1, 2)
    assert found["reward 'correctness' failed: raised KeyError"] == (1, 2)


@pytest.mark.parametrize(
    ("judged_by", "right"), [({"ground_truth": "4"}, 1), ({}, np.nan), ("4", np.nan)]
)
def test_skyrl_has_its_truth_among_the_extras_of_the_environment(saved, judged_by, right):
    record = {"input_prompt": "2+2", "output_response": RIGHT, "score": 1.0}
    path = saved("a.jsonl", [{**record, "env_extras": {"reward_spec": judged_by}}])
    (table,), _ = read(path, "gsm8k")
    assert_array_equal(table.rewards, [[right, 1, 1]])


def test_tokens_are_judged_where_the_dump_counts_them(tmp_path):
    (table,), _ = read(written.nemo_rl(tmp_path), f"{__name__}:both")
    assert table.names == ("size", "length")
    assert table.rewards.tolist() == [[len("answer"), 1.0]] * 4
    assert table.advantages.tolist() == pytest.approx([0.7, -0.7, 0, 0])
    (table,), report = read(verl_v1(tmp_path / "verl" / "1.jsonl", "4"), f"{__name__}:both")
    assert np.isnan(table.rewards[:, 1]).all()
    assert any(notice.what == NO_TOKENS for notice in report.notices.values())


@pytest.mark.parametrize("make", [written.tinker, written.open_instruct])
def test_a_dump_without_texts_is_not_read_to_be_scored_and_says_so(tmp_path, make):
    tables, report = read(make(tmp_path), "gsm8k")
    assert (tables, report.files) == ([], [])
    (why,) = set(report.left_out.values())
    assert "no texts" in why
    assert "leave it out (rescore)" in why


def test_a_rollout_without_a_completion_is_not_scored_and_says_so(saved):
    records = [{"step": 1, "prompt": "2+2", "completion": text, "score": 1} for text in (None, "9")]
    (table,), report = read(saved("a.jsonl", records), f"{__name__}:size")
    assert_array_equal(table.rewards, [[np.nan], [1.0]])
    found = told(report)
    assert found[NO_TEXT] == (1, 1)


def test_columns_of_parquet_give_the_row_of_the_task(saved):
    rows = [
        {
            "step": 1,
            "prompt": [{"role": "user", "content": "2+2"}],
            "completion": [{"role": "assistant", "content": text}],
            "advantage": 0.0,
            "answer": "so it is #### 4",
            "reward_of_theirs": 0.25,
        }
        for text in (RIGHT, WRONG)
    ]
    (table,), _ = read(saved("completions_00001.parquet", rows), "gsm8k")
    assert table.rewards.tolist() == OF_RIGHT_AND_WRONG
    assert len(set(table.groups.tolist())) == 1


def test_our_own_record_has_its_reference(tmp_path):
    extra = {"reference": {"answer": "4"}}
    rollouts = [
        rollout(1, 0, i, {"old": 0.0}, prompt="2+2", completion=text, extra=extra)
        for i, text in enumerate((RIGHT, WRONG))
    ]
    write_rollouts(rollout_file(tmp_path, 1), rollouts)
    (table,), report = read(tmp_path, "gsm8k")
    assert table.rewards.tolist() == OF_RIGHT_AND_WRONG
    assert table.weights is None  # those of the old rewards
    assert not report.notices


def test_ms_swift_has_the_solution_beside_its_rewards(tmp_path):
    path = written.swift(tmp_path)
    first = json.loads(path.read_text().splitlines()[0])
    written.lines(path, [{**first, "completion": ["4", "5", "4", "5"]}])
    (table,), _ = read(path, "gsm8k")
    assert table.names == ("correctness", "integer", "format")
    assert table.rewards[:, 0].tolist() == [1, 0, 0, 1]  # the solutions are 4, 4, 5, 5


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("tokens", ["2.5", "many", "nan", "inf"])
def test_numbers_of_tokens_that_are_none_are_missing(saved, ending, tokens):
    record = {"prompt": "a", "completion": "b", "reward": 1.0, "num_tokens": tokens}
    (table,), report = read(saved(f"a.{ending}", [record]), f"{__name__}:both")
    known = tokens == "2.5"
    assert_array_equal(table.rewards, [[1, 1 if known else np.nan]])
    assert any(n.what == NO_TOKENS for n in report.notices.values()) != known


def test_all_chunks_are_scored(saved):
    record = {"input": "2+2", "gts": "4", "score": 0.5, "step": 1, "output": WRONG}
    (table,), report = read(saved("1.jsonl", [record] * 9000), f"{__name__}:size")
    assert table.rewards.sum() == 9000
    assert report.read == 9000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm9k", "did you mean 'gsm8k'"),
        (f"{__name__}:nothing", " int: .*task"),
        ("token_limit", "'token_limit'"),
    ],
)
def test_what_cannot_score_is_refused(name, message):
    with config_error(message):
        Rescorer(name)


def test_a_reward_of_turns_is_rescored_on_the_messages_of_the_model(tmp_path):
    talk = [
        {"role": "assistant", "content": "ab"},
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": "c"},
    ]
    written_by = [RolloutText("p", talk), RolloutText("p", "abcd"), RolloutText("p", None)]
    with Rescorer("tests.analysis.test_rescore:letters") as rescorer:
        rescored = rescorer(written_by)
        assert rescorer.low == {}  # a total over the turns has no range
    assert rescored.rewards == {"letters": [3, 4, None]}
    assert rescored.problems[NO_TEXT] == [2]


def test_texts_of_a_record_that_look_like_messages_are_scored_as_they_are(tmp_path):
    said = '[{"role": "assistant", "content": "4"}]'
    rollouts = [rollout(1, 1, i, {"old": 0.0}, completion=said) for i in range(2)]
    write_rollouts(rollout_file(tmp_path, 1), rollouts)
    (table,), _ = read(tmp_path, f"{__name__}:size")
    assert table.rewards.tolist() == [[9], [9]]  # not 1, the length of "4"
