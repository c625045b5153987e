"""verl's V1 trainer writes a row for each output of a rollout, and scores the rollout."""

import pytest
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import notices, read, read_one

from gdpo.integrations.verl._carried import last_outputs
from gdpo.rollouts.readers import batches, read_texts
from gdpo.rollouts.readers.report import ReadProblem


def dump(path, uids, step=3):
    return written.lines(
        path,
        [
            {"input": "a", "output": uid, "gts": None, "score": 1.0, "step": step, "uid": uid}
            for uid in uids
        ],
    )


UIDS = ["p_1_0_0", "p_1_0_1", "p_1_0_2", "p_1_1_0", "q_0_0", "q_0_1", "q_10_0", "q_10_1"]


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_the_last_output_stands_for_its_rollout_as_in_our_plugin(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(batches, "_CHUNK", chunk)
    path = dump(tmp_path / "3.jsonl", UIDS)
    table, report = read_one(path)
    assert table.row.tolist() == [0, 1, 2, 3]
    read_uids = [text.completion for text in read_texts(path, table.row.tolist())]
    assert read_uids == [UIDS[row] for row in sorted(set(last_outputs(UIDS)))]
    assert report.group_sizes == {2: 2}
    assert (report.rows, report.read, report.skipped) == (8, 4, 4)
    assert notices(report) == [(1, 4, ReadProblem.OTHER.value)]


def test_the_highest_number_is_the_last(tmp_path):
    path = dump(tmp_path / "3.jsonl", ["p_0_9", "p_0_10", "p_0_2"])
    assert [text.completion for text in read_texts(path, [0])] == ["p_0_10"]


def test_outputs_that_lie_apart_are_counted_once(tmp_path):
    _, report = read(dump(tmp_path / "3.jsonl", ["p_0_0", "p_1_0", "p_0_1"]))
    assert (report.read, notices(report)) == (2, [(3, 1, ReadProblem.APART.value)])


def test_another_step_has_rollouts_of_its_own(tmp_path):
    path = dump(tmp_path / "a.jsonl", ["p_0_0", "p_1_0"])
    later = dump(tmp_path / "b.jsonl", ["p_0_0", "p_1_0"], step=4)
    path.write_text(path.read_text() + later.read_text())
    later.unlink()
    tables, report = read(path)
    assert [len(table) for table in tables] == [2, 2]
    assert not report.notices


def test_a_uid_of_another_kind_is_the_group(tmp_path):
    path = dump(tmp_path / "3.jsonl", ["math_train_1", "math_train_2", "math_train_2", "x_1"])
    table, report = read_one(path)
    assert report.group_sizes == {1: 2, 2: 1}
    assert len(table) == 4
