"""A warning is told once, when it lasts."""

from gdpo.diagnostics import Finding, Kind, Severity, Watch


def warning(kind=Kind.DROWNED, rewards=("format",)):
    return Finding(kind, Severity.WARNING, rewards, "it is so", "do this", {})


def test_a_warning_must_hold_for_several_batches_in_a_row():
    watch = Watch(batches=3)
    due = [watch.update(batch) for batch in ([warning()], [warning()], [], *[[warning()]] * 4)]
    assert [len(batch) for batch in due] == [0, 0, 0, 0, 0, 1, 0]


def test_each_kind_and_reward_counts_for_itself():
    watch = Watch(batches=1)
    assert len(watch.update([warning(), warning(rewards=("length",))])) == 2
    assert len(watch.update([warning(), warning(Kind.OPPOSED, ("format", "length"))])) == 1


def test_notes_are_not_told():
    note = Finding(Kind.SATURATED, Severity.NOTE, ("format",), "it is so", "nothing", {})
    assert Watch(batches=1).update([note]) == []
