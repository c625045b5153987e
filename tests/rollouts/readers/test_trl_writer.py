"""What TRL's own trainer writes with `log_completions` is read as it was trained."""

import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from tests.rollouts.readers.reading import read
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

SAMPLES = 4


def length(completions, **columns):
    return [len(text[0]["content"]) / 8 for text in completions]


def sometimes(completions, log_extra=None, **columns):
    log_extra("place", list(range(len(completions))))
    log_extra("share", [i / 8 for i in range(len(completions))])
    return [None if i % 4 == 0 else float(i % 2) for i in range(len(completions))]


@pytest.fixture(scope="module")
def run(tiny_policy, tmp_path_factory):
    """Three optimizer steps of two generations: steps 1 and 2 share theirs, and 2 logs it again."""
    folder = tmp_path_factory.mktemp("run")
    prompts = [[{"role": "user", "content": text}] for text in ("one", "two", "three", "four")]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_policy),
        processing_class=AutoTokenizer.from_pretrained(tiny_policy),
        reward_funcs=[length, sometimes],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=str(folder),
            num_generations=SAMPLES,
            per_device_train_batch_size=SAMPLES,
            steps_per_generation=2,
            max_completion_length=8,
            max_steps=3,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=0,
            report_to="none",
            save_steps=3,
            activation_checkpointing=False,
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        ),
    )
    trainer.train()
    return folder


def test_a_generation_that_is_logged_twice_is_read_once(run):
    tables, report = read(run)
    assert [int(table.steps[0]) for table in tables] == [1, 3]
    assert (report.rows, report.read, report.skipped) == (24, 16, 8)
    (repeated,) = report.notices.values()
    assert repeated.file.name == "completions_00002.parquet"
    assert repeated.rows == 8
    assert "rollouts of the previous step again" in str(repeated)


def test_groups_are_told_by_prompts_and_rewards_by_trls_log(run):
    (first, _), report = read(run)
    assert report.formats == {"trl": 3}
    assert report.groups == 4
    assert report.group_sizes == {SAMPLES: 4}
    assert report.grouped_by == {"equal prompts": 16}
    assert not [*report.of_groups()]
    assert first.names == ("length", "sometimes")  # and no column of log_extra
    found = report.files[0].given.rewards
    assert list(found.names) == ["length", "sometimes"]
    assert found.left_out["share"] == "name"
    rows = pq.read_table(run / "completions" / "completions_00001.parquet").to_pylist()
    for place, row in enumerate(rows):
        same = [other["prompt"] == row["prompt"] for other in rows]
        np.testing.assert_array_equal(first.groups == first.groups[place], same)
        assert first.rewards[place, 0] == len(row["completion"][0]["content"]) / 8
        assert first.advantages[place] == row["advantage"]
    assert np.isnan(first.rewards[:, 1]).tolist() == [True, False, False, False] * 2
    assert first.rewards[1:4, 1].tolist() == [1, 0, 1]


@pytest.mark.parametrize("log", [None, "{", "[]", '{"log_history": [1, {"loss": 1}]}'])
def test_without_a_log_that_tells_rewards_every_column_of_its_type_may_be_one(
    run, tmp_path, saved, log
):
    copied = tmp_path / "completions"
    shutil.copytree(run / "completions", copied)
    if log is not None:
        saved("trainer_state.json", log)
    (first, _), report = read(copied)
    assert first.names == ("length", "sometimes", "share")  # not that of whole numbers
    (how,) = {file.given.rewards.how() for file in report.files}  # every file says the same
    assert "'length', 'sometimes', 'share'" in how


def test_the_newest_log_tells(run, tmp_path):
    shutil.copytree(run / "completions", tmp_path / "completions")
    for number, (step, name) in enumerate([(9, "length"), (10, "place")]):
        log = tmp_path / f"checkpoint-{step}" / "trainer_state.json"
        log.parent.mkdir()
        log.write_text(json.dumps({"log_history": [{f"rewards/{name}/mean": 0.5}]}))
        os.utime(log, (number, number))
    assert read(tmp_path / "completions")[0][0].names == ("place",)  # of whole numbers


def test_rewards_that_are_asked_for_are_the_rewards(run):
    table, _ = read(run, rewards=["place", "length"])[0]
    assert table.names == ("place", "length")
    assert table.rewards[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
