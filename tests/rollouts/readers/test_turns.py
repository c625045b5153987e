"""The turns of rollouts are kept, with their rewards, advantages and tokens."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal
from tests.rollouts import built
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read_one as only

from gdpo.rollouts import Turn, rollout_file, write_rollouts
from gdpo.rollouts.readers import Rescored, RolloutTable, TableTurns, read_rollout_files
from gdpo.rollouts.readers.batches import open_file
from gdpo.rollouts.readers.formats import FORMATS, ReaderOptions
from gdpo.rollouts.readers.records import ParsedRollout, RowTurns
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.readers.rewards import MOST, Run, narrow
from gdpo.rollouts.table import joined


def table(turns, *, names=("a", "b"), groups=None, file="x"):
    size = len(turns.counts)
    return RolloutTable.of(
        names,
        np.zeros((size, len(names))),
        np.zeros(size, np.int64) if groups is None else np.array(groups),
        advantages=np.zeros(size),
        files=(Path(file),),
        turns=turns,
    )


def turns(*rollouts):
    """Turns whose rewards count upward from each rollout's first number."""
    counts = np.array([length for length, _ in rollouts])
    longest = int(counts.max(initial=0))
    values = np.full((len(counts), longest, 2), nan)
    for place, (length, first) in enumerate(rollouts):
        values[place, :length] = first + np.arange(length * 2).reshape(length, 2)
    return TableTurns(counts, values, values[..., 0] / 10, values[..., 0] + 100)


TWO = turns((1, 0), (3, 10), (2, 20))


def test_some_rollouts_are_taken_with_their_turns_and_without_needless_padding():
    taken = table(TWO).take(np.array([2, 0])).turns
    assert taken.counts.tolist() == [2, 1]
    assert_array_equal(taken.rewards, [[[20, 21], [22, 23]], [[0, 1], [nan, nan]]])
    assert_array_equal(taken.advantages, [[2, 2.2], [0, nan]])
    assert_array_equal(taken.num_tokens, [[120, 122], [100, nan]])
    assert replace(table(TWO), turns=None).take(np.array([1])).turns is None


def test_joined_tables_are_padded_to_the_longest_and_match_rewards_by_name():
    other = table(turns((2, 5)), names=("b", "c"), file="y")
    found = joined([other, table(TWO)])
    assert found.names == ("b", "c", "a")
    assert found.turns.counts.tolist() == [2, 1, 3, 2]
    assert_array_equal(
        found.turns.rewards[:2],
        [[[5, 6, nan], [7, 8, nan], [nan] * 3], [[1, nan, 0], [nan] * 3, [nan] * 3]],
    )
    assert_array_equal(found.turns.advantages[0], [0.5, 0.7, nan])
    assert_array_equal(found.turns.num_tokens[2], [110, 112, 114])


def test_rollouts_joined_from_a_table_without_turns_have_an_unknown_number_of_turns():
    without = replace(table(TWO), turns=None)
    found = joined([without, table(TWO)]).turns
    assert found.counts.tolist() == [0, 0, 0, 1, 3, 2]
    assert np.isnan(found.rewards[:3]).all()
    assert joined([without, without]).turns is None


def test_a_table_with_a_reward_without_a_name_is_refused():
    with pytest.raises(AssertionError, match="names"):
        replace(table(TWO), names=("a",))


def test_turns_are_grouped_as_the_rewards_are():
    arrays = table(TWO, groups=[7, 3, 7]).grouped().turns
    assert arrays.counts.tolist() == [[3, 0], [1, 2]]
    assert_array_equal(arrays.rewards[0, 0], [[10, 11], [12, 13], [14, 15]])
    assert_array_equal(arrays.rewards[1, 1], [[20, 21], [22, 23], [nan, nan]])
    assert_array_equal(arrays.advantages, [[[1, 1.2, 1.4], [0, 0, 0]], [[0, 0, 0], [2, 2.2, 0]]])


def test_a_rollout_without_turns_has_one_turn():
    given = replace(table(TWO, groups=[7, 3, 7]), turns=None)
    given.advantages[:] = [0.5, -1, 2]
    assert np.shares_memory(given.by_turn.rewards, given.rewards)
    arrays = given.grouped()
    assert arrays.turns.counts.tolist() == [[1, 0], [1, 1]]
    assert_array_equal(arrays.turns.rewards, arrays.rewards[:, :, None])
    assert_array_equal(arrays.turns.advantages, [[[-1], [0]], [[0.5], [2]]])


def test_an_unknown_advantage_of_a_turn_stays_unknown_by_group():
    unknown = replace(TWO, advantages=np.full((3, 3), nan))
    arrays = table(unknown).grouped().turns
    assert_array_equal(arrays.advantages[0, 0], [nan, 0, 0])


def rollout(sample, turns, *, step=3):
    rewards, weights = {"correct": 1.0, "tool": None}, {"correct": 1.0, "tool": 0.5}
    return built.rollout(step, 0, sample, rewards, weights=weights, advantage=0.5, turns=turns)


def turn(correct, tool, advantage=0.25, num_tokens=3):
    return Turn({"correct": correct, "tool": tool}, advantage, num_tokens)


def record(folder, rollouts, step=3):
    write_rollouts(rollout_file(folder, step), rollouts)
    return folder


def test_our_own_record_comes_with_its_turns(tmp_path):
    several = (turn(0.0, 0.5), turn(1.0, 0.25, -1.5, 7))
    rollouts = [rollout(0, None), rollout(1, several), rollout(2, ()), rollout(3, several[1:])]
    table, report = only(record(tmp_path, rollouts))
    assert table.names == ("correct", "tool")
    assert table.turns.counts.tolist() == [0, 2, 0, 1]
    none = [nan, nan]
    assert_array_equal(
        table.turns.rewards, [[none, none], [[0, 0.5], [1, 0.25]], [none, none], [[1, 0.25], none]]
    )
    assert_array_equal(table.turns.advantages[1:4:2], [[0.25, -1.5], [-1.5, nan]])
    assert_array_equal(table.turns.num_tokens[1:4:2], [[3, 7], [7, nan]])
    assert not report.notices


def test_our_own_record_without_turns_has_none(tmp_path):
    assert only(record(tmp_path / "a", [rollout(0, None)]))[0].turns is None
    assert only(record(tmp_path / "b", [rollout(0, ())]))[0].turns is None


def test_turns_follow_the_order_of_the_rewards_that_are_named(tmp_path):
    record(tmp_path, [rollout(0, (turn(1.0, 0.5),))])
    table, _ = only(tmp_path, rewards=["tool", "rewards.correct", "advantage"])
    assert table.names == ("tool", "rewards.correct", "advantage")
    assert_array_equal(table.turns.rewards, [[[0.5, 1, 0.25]]])


def test_a_missing_or_unusable_value_of_a_turn_is_missing_and_the_latter_is_reported(tmp_path):
    odd = (turn(inf, None), turn(-1e70, nan, nan))
    table, report = only(record(tmp_path, [rollout(0, None), rollout(1, odd)]))
    assert np.isnan(table.turns.rewards).all()
    assert np.isnan(table.turns.advantages[1]).tolist() == [False, True]
    found = {(n.what.partition(" is ")[0], n.place[-1]) for n in report.notices.values()}
    assert found == {(f"reward '{name}' of a turn", "1") for name in ("correct", "tool")} | {
        ("the advantage of a turn", "1")
    }


def test_turns_that_do_not_add_up_to_the_reward_of_the_rollout_are_reported(tmp_path):
    fits, more = (turn(0.25, 9.0), turn(0.75, 9.0)), (turn(1.0, 9.0), turn(0.5, 9.0))
    unknown = (turn(None, 9.0), turn(0.5, 9.0))
    given = enumerate([fits, more, None, (), unknown, more])
    table, report = only(record(tmp_path, [rollout(s, turns) for s, turns in given]))
    assert table.turns is not None
    (notice,) = report.notices.values()
    assert "'correct' of the turns does not add up" in notice.what
    assert notice.count == 2
    assert notice.line == 1


def test_each_step_of_a_file_has_its_own_turns(tmp_path):
    rollouts = [
        rollout(s, (turn(float(s), None),) * (s + 1), step=step)
        for s in range(2)
        for step in (3, 4)
    ]
    tables = list(read_rollout_files(record(tmp_path, rollouts)))
    assert [table.turns.counts.tolist() for table in tables] == [[1, 2], [1, 2]]
    assert_array_equal(tables[1].turns.rewards[..., 0], [[0, nan], [1, 1]])


def only_with(turns, folder):
    """Read the record of a rollout with another column of turns."""
    file = rollout_file(record(folder, [rollout(0, (turn(1.0, 0.5),))]), 3)
    found = pq.read_table(file)
    place = found.schema.get_field_index("turns")
    pq.write_table(found.set_column(place, "turns", turns), file)
    return only(folder)


@pytest.mark.parametrize("other", [["two"], [["two"]], [None]])
def test_a_column_of_turns_of_another_kind_is_reported_and_not_read(tmp_path, other):
    table, report = only_with(pa.array(other), tmp_path)
    assert table.turns is None
    assert any("'turns'" in notice.what for notice in report.notices.values())


def test_a_column_called_turns_of_another_format_is_not_looked_at(tmp_path, saved):
    saved("a.csv", "prompt,reward_a,reward_b,turns\nq,1,0.5,3\nq,0,1,2\n")
    table, report = only(tmp_path / "a.csv")
    assert (table.format, table.turns) == ("columns", None)
    assert not report.notices


def test_a_turn_that_is_null_or_lacks_fields_is_missing(tmp_path):
    kind = pa.list_(pa.struct([("rewards", pa.struct([("correct", pa.float64())]))]))
    turns = pa.array([[{"rewards": {"correct": 2.0}}, None, {"rewards": None}]], kind)
    table, _ = only_with(turns, tmp_path)
    assert table.turns.counts.tolist() == [3]
    assert_array_equal(table.turns.rewards, [[[2, nan], [nan, nan], [nan, nan]]])
    assert np.isnan([table.turns.advantages, table.turns.num_tokens]).all()


@pytest.mark.parametrize("most", [2 * 3 * 4 - 1, 3 * 3 * 4 - 1])
def test_turns_that_take_too_much_memory_are_reported_and_not_read(tmp_path, monkeypatch, most):
    """In one file, or after its step has been joined with another one."""
    monkeypatch.setattr("gdpo.rollouts.table.MOST", most)
    three = (turn(1.0, 0.5), turn(0.0, 0.5), turn(0.0, 0.5))
    record(tmp_path, [rollout(0, three), rollout(1, None)])
    write_rollouts(tmp_path / "more_3.parquet", [rollout(2, (turn(1.0, 0.5),))])
    table, report = only(tmp_path)
    assert len(table) == 3
    kept = most < 3 * 3 * 4 - 1
    assert (table.turns is not None) == kept
    assert [n.problem for n in report.notices.values()] == [ReadProblem.MANY_TURNS]


def test_rescored_rewards_have_no_turns(tmp_path):
    record(tmp_path, [rollout(0, (turn(1.0, 0.5),))])
    scored = Rescored({"r": [1.0]}, {})
    assert only(tmp_path, rescore=lambda rows: scored)[0].turns is None


def tinker(folder, trajectories):
    """Steps are `(reward, metrics)`; a trajectory is `(steps, final reward, its metrics)`."""
    lines = [
        {
            "schema_version": 1,
            "iteration": 4,
            "group_idx": 0,
            "traj_idx": place,
            "total_reward": sum(reward for reward, _ in steps) + final,
            "final_reward": final,
            "trajectory_metrics": metrics,
            "steps": [
                {"step_idx": t, "ac_len": 3 + t, "reward": reward, "metrics": of_step, "logs": {}}
                for t, (reward, of_step) in enumerate(steps)
            ],
        }
        for place, (steps, final, metrics) in enumerate(trajectories)
    ]
    return written.lines(folder / "iteration_000009" / "train_rollout_summaries.jsonl", lines)


TINKERS = Path(__file__).parent / "golden" / "tinker-turns_0.6.1"
TINKER = [
    ([(0.5, {"search": 1}), (0.0, {"correct": 0.25}), (2.0, {"search": 3})], 4.0, {"brief": 0.5}),
    ([(1.0, {"search": 0.0, "stop/completed": 1.0})], 0.0, {"search": True}),
]


def test_the_steps_of_tinker_are_turns_and_a_turn_without_a_metric_earns_0_of_it():
    """tinker_cookbook's own writer wrote the file, with the script beside it."""
    table, report = only(TINKERS)
    assert not report.notices
    assert table.names == ("search", "correct", "brief")
    assert_array_equal(table.rewards, [[2, 0.25, 0.5], [1, nan, nan]])
    assert table.turns.counts.tolist() == [3, 1]
    assert_array_equal(
        table.turns.rewards,
        [[[1, 0, 0], [0, 0.25, 0], [3, 0, 0.5]], [[1, nan, nan], [nan] * 3, [nan] * 3]],
    )
    assert_array_equal(table.turns.num_tokens, [[3, 4, 5], [3, nan, nan]])
    assert np.isnan(table.turns.advantages).all()


def test_the_scalar_reward_of_tinker_includes_the_final_reward_in_the_last_turn():
    table, _ = only(TINKERS, rewards=["total_reward"])
    assert_array_equal(table.turns.rewards[..., 0], [[0.5, 0, 6], [1, nan, nan]])
    assert np.nansum(table.turns.rewards[..., 0], axis=1).tolist() == table.total.tolist()


def test_records_of_a_single_turn_have_no_turns(tmp_path):
    table, _ = only(tinker(tmp_path, TINKER[1:]))
    assert table.turns is None
    assert table.steps.tolist() == [4]  # of the line, not of its folder


def test_a_metric_of_the_whole_trajectory_stands_at_the_last_turn_instead_of_those_of_steps(
    tmp_path,
):
    steps = [(0.0, {"a": 1.0}), (0.0, {"a": 2.0})]
    table, _ = only(tinker(tmp_path, [(steps, 0.0, {"a": 5.0, "note": "x"})]))
    assert table.rewards.tolist() == [[5]]
    assert table.turns.rewards.tolist() == [[[0], [5]]]


def test_a_rollout_without_steps_has_no_turns_next_to_those_that_have_some(tmp_path):
    table, report = only(tinker(tmp_path, [*TINKER, ([], 1.0, {"brief": 0.5})]))
    assert table.turns.counts.tolist() == [3, 1, 0]
    assert np.isnan(table.turns.rewards[2]).all()
    assert report.skipped == 0


def test_unusable_metrics_of_a_turn_are_reported(tmp_path):
    steps = [(0.0, {"a": inf}), (0.0, {"a": nan, "b": "x"}), (0.0, {"a": 1.0})]
    table, report = only(tinker(tmp_path, [(steps, 0.0, {})]))
    assert_array_equal(table.turns.rewards, [[[nan], [nan], [1]]])
    found = {notice.what for notice in report.notices.values() if "of a turn" in notice.what}
    assert {what.rpartition(" is ")[2][:3] for what in found} == {"inf", "NaN"}


def test_many_turns_end_a_batch_of_records_early(tmp_path, monkeypatch):
    """So that little besides the turns of one line is ever kept as objects."""
    monkeypatch.setattr("gdpo.rollouts.readers.batches._TURNS", 4)
    path = tinker(tmp_path, TINKER * 3)
    _, batches = open_file(ReaderOptions(), FileReport(path), Run())
    assert [len(part.lines) for part in batches] == [2, 2, 2]


def test_a_rollout_of_one_turn_is_the_same_alone_in_its_batch(tmp_path, monkeypatch):
    whole, _ = only(tinker(tmp_path / "a", TINKER))
    monkeypatch.setattr("gdpo.rollouts.readers.batches._TURNS", 1)
    split, _ = only(tinker(tmp_path / "b", TINKER))
    assert_array_equal(split.turns.rewards, whole.turns.rewards)
    assert_array_equal(split.turns.num_tokens, whole.turns.num_tokens)
    assert split.turns.counts.tolist() == whole.turns.counts.tolist() == [3, 1]


def test_of_too_many_rewards_only_those_that_are_kept_stay_in_the_turns(tmp_path):
    """A line of many names takes no memory beyond its own parsing."""
    form = next(form for form in FORMATS if form.rewards == "format")
    names = [f"m{i}" for i in range(MOST + 9)]
    turns = RowTurns(2, {name: {0: 1.0} for name in (*names, "reward")}, (1.0, 1.0))
    row = ParsedRollout(rewards=dict.fromkeys(names, 1.0), turns=turns)
    narrow(row, ReaderOptions(), form, FileReport(tmp_path))
    assert set(row.turns.rewards) == {*names[:MOST], "reward"}
