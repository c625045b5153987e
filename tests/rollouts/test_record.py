"""The rollout record comes back as it was written, or not at all."""

import dataclasses

import pyarrow.parquet as pq
import pytest
from tests.refusals import data_error

from gdpo.rewards.text import completion_text
from gdpo.rollouts import Rollout, StepWriter, read_rollouts, rollout_file, write_rollouts
from gdpo.rollouts.readers import read_rollout_files, read_texts
from gdpo.rollouts.record import Turn, opened, read_declared

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


def test_turns_are_kept_with_their_rewards_and_advantages(tmp_path):
    turns = (
        Turn({"correctness": None, "length": 0.25}, advantage=-0.5, num_tokens=3),
        Turn({"correctness": 1.0, "length": 0.0}, advantage=1.5, num_tokens=1),
    )
    several = dataclasses.replace(ROLLOUT, turns=turns)
    none_taken = dataclasses.replace(ROLLOUT, turns=())
    write_rollouts(tmp_path / "a.parquet", [several, ROLLOUT, none_taken])
    assert read_rollouts(tmp_path / "a.parquet") == [several, ROLLOUT, none_taken]
    write_rollouts(tmp_path / "b.parquet", [ROLLOUT])
    assert "turns" not in pq.read_schema(tmp_path / "b.parquet").names
    swapped = (dataclasses.replace(turns[0], rewards={"length": 0.25, "correctness": None}),)
    with data_error("all rollouts and turns"):
        write_rollouts(tmp_path / "c.parquet", [dataclasses.replace(ROLLOUT, turns=swapped)])


def test_a_record_that_does_not_say_what_was_trained_holds_what_was(tmp_path):
    path = rollout_file(tmp_path, 3)
    write_rollouts(path, [dataclasses.replace(ROLLOUT, trained=False), ROLLOUT])
    assert [r.trained for r in read_rollouts(path)] == [False, True]
    pq.write_table(pq.read_table(path).drop_columns("trained"), path)
    assert all(r.trained for r in read_rollouts(path))


DECLARED = {
    "correctness": {"low": 0.0, "high": 1.0},
    "length": {"low": 0.0, "high": 2.0, "gate": {"on": "correctness", "at_least": 1.0}},
}
RANGES = {"correctness": (0.0, 1.0), "length": (0.0, 2.0)}


def ranges_read(path, **options):
    return [dict(table.ranges) for table in read_rollout_files(path, **options)]


def test_what_is_declared_of_the_rewards_is_kept_and_read(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROLLOUT], declared=DECLARED)
    assert read_declared(pq.read_schema(tmp_path / "a.parquet")) == DECLARED
    assert ranges_read(tmp_path) == [RANGES]
    assert ranges_read(tmp_path, rewards=["length"]) == [{"length": (0.0, 2.0)}]
    assert ranges_read(tmp_path, rewards=["advantage"]) == [{}]
    assert read_rollouts(tmp_path / "a.parquet") == [ROLLOUT]


def test_every_batch_of_a_step_keeps_what_is_declared(tmp_path):
    writer = StepWriter(tmp_path, declared=DECLARED)
    writer.write(3, [ROLLOUT])
    writer.write(3, [ROLLOUT])
    assert ranges_read(tmp_path) == [RANGES]


def test_a_record_without_declarations_has_no_ranges(tmp_path):
    write_rollouts(tmp_path / "a.parquet", [ROLLOUT])
    assert pq.read_schema(tmp_path / "a.parquet").metadata is None
    assert ranges_read(tmp_path) == [{}]


def test_files_of_one_step_that_contradict_each_other_have_no_range(tmp_path):
    other = {**DECLARED, "length": {"low": 0.0, "high": 3.0}}
    write_rollouts(tmp_path / "a.parquet", [ROLLOUT], declared=DECLARED)
    write_rollouts(tmp_path / "b.parquet", [ROLLOUT], declared=other)
    write_rollouts(tmp_path / "c.parquet", [ROLLOUT])
    assert ranges_read(tmp_path) == [{"correctness": (0.0, 1.0)}]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[1]",
        b'{"correctness": [0, 1]}',
        b'{"correctness": {"low": 1, "high": 1}}',
        b'{"correctness": {"low": NaN, "high": Infinity}}',
        b'{"correctness": {"low": "0", "high": null}}',
        b'{"correctness": {"low": 0, "high": 1' + b"0" * 400 + b"}}",
    ],
)
def test_anything_may_stand_in_the_place_of_a_range(tmp_path, text):
    write_rollouts(tmp_path / "a.parquet", [ROLLOUT])
    table = pq.read_table(tmp_path / "a.parquet")
    table = table.replace_schema_metadata({"gdpo.rewards": text})
    pq.write_table(table, tmp_path / "a.parquet")
    assert ranges_read(tmp_path) == [{}]


def test_rewards_are_columns_that_other_tools_can_query(tmp_path):
    path = tmp_path / "a.parquet"
    write_rollouts(path, [ROLLOUT])
    table = pq.read_table(path).flatten()
    assert table["rewards.correctness"].to_pylist() == [1.0]
    assert table["rewards.length"].to_pylist() == [None]


TALK = [
    {"role": "assistant", "tool_calls": [{"name": "f"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
    {"role": "tool", "name": "f", "content": "7"},
    {"role": "assistant", "content": [{"type": "text", "text": "It is 7."}]},
    {"role": "assistant", "content": '{"content": "what a model wrote"}'},
    {"role": "assistant", "content": '{"tool_calls": 1, "role": "tool"}'},
    {"role": "assistant", "content": '{"answer": 7}'},
    {"role": "assistant", "content": "{"},
    {"role": None, "content": "x"},
]


def test_messages_that_are_more_than_text_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "a.parquet"
    said = '{"content": "a whole completion"}'
    write_rollouts(path, [dataclasses.replace(ROLLOUT, completion=c) for c in (TALK, said)])
    assert [each.completion for each in read_rollouts(path)] == [TALK, said]
    assert [each.completion for each in read_texts(path, [0, 1])] == [TALK, said]
    stored = pq.read_table(path)["completion"].to_pylist()[0]
    assert stored[2] == {"role": "tool", "content": '{"name": "f", "content": "7"}'}
    assert stored[6] == TALK[6]


def test_a_text_does_not_change_the_role_of_its_message():
    result = {"role": "tool", "content": '{"role": "assistant", "content": "7"}'}
    assert opened([result]) == [result]


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
    with data_error(r"group 1, sample 0 has \['length'\]"):
        write_rollouts(tmp_path / "a.parquet", [ROLLOUT, other])


def test_a_file_that_is_no_record_is_an_error(saved):
    path = saved("a.parquet", "nothing")
    with data_error("not a gdpo rollout record"):
        read_rollouts(path)


def test_lone_surrogates_anywhere_do_no_harm(tmp_path):
    path = tmp_path / "a.parquet"
    bad = [{"role": "\ud800", "content": "\ud800"}]
    write_rollouts(path, [dataclasses.replace(ROLLOUT, prompt=bad, extra={"answer": "\ud800"})])
    (rollout,) = read_rollouts(path)
    assert rollout.prompt == [{"role": "?", "content": "?"}]
    assert rollout.extra == {"answer": "?"}


def test_a_step_without_rollouts_has_no_record(tmp_path):
    with data_error("no rollouts"):
        write_rollouts(tmp_path / "a.parquet", [])


def test_a_missing_record_is_an_error(tmp_path):
    with data_error(r"does not exist$"):
        read_rollouts(tmp_path / "nowhere.parquet")


@pytest.mark.parametrize("field", ["function_call", "reasoning_content"])
def test_a_message_without_content_is_not_read_as_text(tmp_path, field):
    path = tmp_path / "a.parquet"
    said = [{"role": "assistant", field: "it is 7"}]
    write_rollouts(path, [dataclasses.replace(ROLLOUT, completion=said)])
    (rollout,) = read_rollouts(path)
    assert rollout.completion == [{"role": "assistant", "content": None, field: "it is 7"}]
    assert completion_text(rollout.completion) == ""
