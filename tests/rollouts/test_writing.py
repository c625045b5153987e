"""A run's rollouts go into a file per step, and a step that cannot be written does not end it."""

import resource
from contextlib import contextmanager

import pytest
from tests.refusals import config_error
from tests.rollouts.built import rollout

from gdpo.rollouts import StepWriter, read_rollouts, rollout_file, write_rollouts
from gdpo.rollouts.writing import set_aside


def group(step):
    return [rollout(step, 0, sample, {"right": 1.0}) for sample in range(2)]


def block(folder, step):
    """What no file can replace, whoever writes: a folder of its name."""
    (in_the_way := rollout_file(folder, step)).mkdir()
    return in_the_way


@contextmanager
def no_space():
    """Files can be made, and nothing can be put into them."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_batches_of_a_step_are_one_file_with_groups_of_their_own(tmp_path):
    writer = StepWriter(tmp_path)
    for step in (1, 1, 2):
        writer.write(step, group(step))
    assert [r.group_id for r in read_rollouts(rollout_file(tmp_path, 1))] == [0, 0, 1, 1]
    assert [r.group_id for r in read_rollouts(rollout_file(tmp_path, 2))] == [0, 0]


def test_a_step_that_cannot_be_written_is_told_once_and_the_next_are_tried(tmp_path, caplog):
    writer = StepWriter(tmp_path)
    for step in (2, 3):
        block(tmp_path, step)
    for step in (1, 2, 3):
        writer.write(step, group(step))
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert str(rollout_file(tmp_path, 2)) in told.getMessage()
    assert "Is a directory" in told.getMessage()
    writer.write(4, group(4))
    assert files(tmp_path) == ["step_000001.parquet", "step_000004.parquet"]
    assert len(read_rollouts(rollout_file(tmp_path, 1))) == 2


def test_how_many_steps_were_lost_is_told_when_one_is_written_again(tmp_path, caplog):
    writer = StepWriter(tmp_path)
    for step in (2, 3, 6):
        block(tmp_path, step)
    for step in range(2, 6):
        writer.write(step, group(step))
    _, again = caplog.messages
    assert str(rollout_file(tmp_path, 4)) in again
    assert again.endswith("not recorded completely: 2, from 2 to 3")
    caplog.clear()
    for step in (6, 7):
        writer.write(step, group(step))
    lost, again = caplog.messages
    assert lost.startswith("ROLLOUTS ARE BEING LOST")
    assert again.endswith("not recorded completely: 1, from 6 to 6")


def test_a_later_batch_of_the_same_step_brings_back_what_was_lost(tmp_path, caplog):
    writer = StepWriter(tmp_path)
    in_the_way = block(tmp_path, 1)
    writer.write(1, group(1))
    in_the_way.rmdir()
    writer.write(1, group(1))
    assert len(read_rollouts(rollout_file(tmp_path, 1))) == 4
    assert caplog.messages[-1].endswith("not recorded completely: 0")


@pytest.mark.filterwarnings("error")
def test_a_folder_is_made_and_nothing_is_left_in_it_by_the_check(tmp_path):
    StepWriter(tmp_path / "a" / "b").check_folder()
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error_before_the_run(saved):
    with config_error(r"file/rollouts: .* Not a directory"):
        StepWriter(saved("file", "") / "rollouts").check_folder()


def test_a_disk_without_space_is_an_error_before_the_run(tmp_path):
    with no_space(), config_error("File too large"):
        StepWriter(tmp_path).check_folder()


def test_an_error_of_the_disk_names_the_file_and_leaves_nothing(tmp_path):
    file = rollout_file(tmp_path, 1)
    with no_space(), pytest.raises(OSError, match="File too large") as error:
        write_rollouts(file, group(1))
    assert error.value.filename == str(file)
    assert files(tmp_path) == []


def everything(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def test_what_an_earlier_run_left_is_moved_and_nothing_else(tmp_path):
    for name in ("step_000001.parquet", "eval/step_000000.parquet", "eval/notes.txt", "mine.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "earlier-1").mkdir()
    set_aside(tmp_path)
    moved = ["earlier-2/eval/step_000000.parquet", "earlier-2/step_000001.parquet"]
    assert everything(tmp_path) == [*moved, "eval/notes.txt", "mine.json"]
    set_aside(tmp_path)
    assert not (tmp_path / "earlier-3").exists()


def test_a_file_that_is_the_runs_own_stays(tmp_path):
    for step in (1, 2):
        rollout_file(tmp_path, step).touch()
    set_aside(tmp_path, keep=[rollout_file(tmp_path, 2)])
    assert everything(tmp_path) == ["earlier-1/step_000001.parquet", "step_000002.parquet"]


def test_what_cannot_be_moved_is_an_error_that_says_so(open_folder):
    (folder := open_folder / "rollouts").mkdir()
    rollout_file(folder, 1).touch()
    folder.chmod(0o555)
    with config_error("earlier-1"):
        set_aside(folder)
