"""Checkpoints: what makes one complete, what damages it, and which one a run goes on from."""

import pytest

from gdpo.lab.runs.checkpoints import (
    Checkpoint,
    checkpoints,
    complete,
    damage,
    keep_newest,
    newest_whole,
    size_of,
)


def make(folder, step, *, done=True):
    path = folder / f"checkpoint-{step}"
    (path / "shards").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "shards" / "optimizer.pt").write_bytes(b"moments")
    if done:
        complete(path)
    return Checkpoint(path, step)


def test_the_newest_comes_first_and_what_was_never_completed_is_none(tmp_path):
    for step in (2, 10, 9):
        make(tmp_path, step)
    make(tmp_path, 11, done=False)
    (tmp_path / "README.md").touch()
    (tmp_path / "checkpoint-x").mkdir()
    assert [checkpoint.step for checkpoint in checkpoints(tmp_path)] == [10, 9, 2]
    assert checkpoints(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("harm", "printed"),
    [
        (lambda path: (path / "shards" / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (
            lambda path: (path / "model.safetensors").write_bytes(b"we"),
            "model.safetensors has 2 bytes instead of 7",
        ),
        (
            lambda path: (path / "model.safetensors").write_bytes(b"weighty"),
            "the content of model.safetensors has changed",
        ),
        (lambda path: (path / "files.json").write_text("{"), "files.json cannot be read"),
        (lambda path: (path / "files.json").write_text("[1]"), "files.json cannot be read"),
        (
            lambda path: (path / "files.json").write_text('{"files": {}}'),
            "files.json lists no files",
        ),
        (
            lambda path: (path / "files.json").write_text('{"files": {"a": {"bytes": "x"}}}'),
            "files.json cannot be read",
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_and_passed_over(harm, printed, tmp_path):
    older, newer = make(tmp_path, 4), make(tmp_path, 12)
    assert newest_whole(tmp_path) == (newer, [])
    harm(newer.path)
    assert damage(newer) == printed
    assert newest_whole(tmp_path) == (older, [f"checkpoint-12 is damaged: {printed}"])
    harm(older.path)
    start, damaged = newest_whole(tmp_path)
    assert (start, len(damaged)) == (None, 2)


def test_a_checkpoint_that_lost_its_list_is_named_and_one_that_was_only_begun_is_not(tmp_path):
    older = make(tmp_path, 4)
    for step in (8, 12):
        make(tmp_path, step, done=False)
    (tmp_path / "checkpoint-12" / "trainer_state.json").touch()
    printed = "checkpoint-12 has no files.json, so it cannot be checked"
    assert newest_whole(tmp_path) == (older, [printed])


def test_older_checkpoints_go_and_the_best_one_stays(tmp_path):
    for step in (1, 2, 3, 4):
        make(tmp_path, step)
    make(tmp_path, 5, done=False)  # is being written, and counts for nothing
    keep_newest(tmp_path, None, None)
    assert len(checkpoints(tmp_path)) == 4
    keep_newest(tmp_path, 2, "checkpoint-1")
    assert [checkpoint.step for checkpoint in checkpoints(tmp_path)] == [4, 3, 1]
    assert (tmp_path / "checkpoint-5").exists()


def test_the_size_of_a_checkpoint_is_that_of_its_files(tmp_path):
    assert size_of(make(tmp_path, 1).path) == 14
