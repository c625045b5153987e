"""The rollout record comes back as it was written, or not at all."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from gdpo.errors import DataError
from gdpo.rollouts import Rollout, read_rollouts, rollout_file, write_rollouts

ROLLOUT = Rollout(
    run="try",
    step=3,
    group_id=1,
    sample_id=0,
    prompt=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "2+2?"}],
    completion="4\x00 \u202e<script>",
    rewards={"correctness": 1.0, "length": None},
    weights={"correctness": 1.0, "length": 0.5},
    advantage=-0.25,
    num_tokens=4,
    finish_reason="stop",
    extra={"reference": {"answer": "4"}},
)


def test_what_is_written_is_what_is_read(tmp_path):
    path = rollout_file(tmp_path / "rollouts", 3)
    write_rollouts(path, [ROLLOUT, dataclasses.replace(ROLLOUT, sample_id=1, completion="")])
    first, second = read_rollouts(path)
    assert first == ROLLOUT
    assert second.completion == ""
    assert path.name == "step_000003.parquet"


def test_a_record_that_does_not_say_what_was_trained_holds_what_was(tmp_path):
    path = rollout_file(tmp_path, 3)
    write_rollouts(path, [dataclasses.replace(ROLLOUT, trained=False), ROLLOUT])
    assert [r.trained for r in read_rollouts(path)] == [False, True]
    pq.write_table(pq.read_table(path).drop_columns("trained"), path)
    assert all(r.trained for r in read_rollouts(path))


def test_rewards_are_columns_that_other_tools_can_query(tmp_path):
    path = tmp_path / "a.parquet"
    write_rollouts(path, [ROLLOUT])
    table = pq.read_table(path).flatten()
    assert table["rewards.correctness"].to_pylist() == [1.0]
    assert table["rewards.length"].to_pylist() == [None]


def test_a_message_that_is_more_than_text_is_kept_as_json(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    path = tmp_path / "a.parquet"
    write_rollouts(path, [dataclasses.replace(ROLLOUT, completion=[call])])
    (message,) = read_rollouts(path)[0].completion
    assert message["role"] == "assistant"
    assert '"tool_calls": [{"name": "f"}]' in message["content"]


def test_text_that_has_no_utf8_is_stored_all_the_same(tmp_path):
    path = tmp_path / "a.parquet"
    write_rollouts(path, [dataclasses.replace(ROLLOUT, completion="a\ud800b")])
    assert read_rollouts(path)[0].completion == "a?b"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.parquet"
    write_rollouts(path, [ROLLOUT])
    broken = dataclasses.replace(ROLLOUT, advantage="much")
    with pytest.raises(Exception, match="much"):
        write_rollouts(path, [broken])
    assert read_rollouts(path) == [ROLLOUT]
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_rollouts_with_different_rewards_are_an_error(tmp_path):
    other = dataclasses.replace(ROLLOUT, rewards={"length": 1.0})
    with pytest.raises(DataError, match=r"group 1, sample 0 has \['length'\]"):
        write_rollouts(tmp_path / "a.parquet", [ROLLOUT, other])


def test_a_file_that_is_no_record_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("nothing")
    with pytest.raises(DataError, match="no rollout record"):
        read_rollouts(path)


def test_lone_surrogates_anywhere_do_no_harm(tmp_path):
    path = tmp_path / "a.parquet"
    bad = [{"role": "\ud800", "content": "\ud800"}]
    write_rollouts(path, [dataclasses.replace(ROLLOUT, prompt=bad, extra={"answer": "\ud800"})])
    (rollout,) = read_rollouts(path)
    assert rollout.prompt == [{"role": "?", "content": "?"}]
    assert rollout.extra == {"answer": "?"}


def test_a_step_without_rollouts_has_no_record(tmp_path):
    with pytest.raises(DataError, match="without rollouts"):
        write_rollouts(tmp_path / "a.parquet", [])


def test_a_missing_record_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no rollout record"):
        read_rollouts(tmp_path / "nowhere.parquet")
