"""A trained reward that rises while a watch-only reward falls."""

import json

import numpy as np
import pytest

from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics._parting import MOST_BLOCKS, Course
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.watch import FindingHistory

NAMES = ["brevity", "correctness"]


def run(*, steps=30, groups=16, fall=1.0, rise=2.0, against=1.0, start=10, weights=(1, 0), seed=0):
    """The diagnosis of each step of a run that parts after `start` steps, by sudden changes."""
    random = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        after = step > start
        noise = random.standard_normal((groups, 8))
        brevity = noise + rise * after
        correctness = -against * noise + random.standard_normal((groups, 8)) - fall * after
        batch = np.stack([brevity, correctness], axis=-1)
        yield diagnose(batch, list(weights), NAMES)


def parted(diagnoses):
    watch = Watch()
    return [
        (step, finding)
        for step, diagnosis in enumerate(diagnoses, 1)
        if watch.update(diagnosis)
        for finding in watch.due
        if finding.kind is Kind.PARTED
    ]


def test_the_parting_is_reported_once_with_its_step_the_fall_and_what_to_do():
    ((step, finding),) = parted(run())
    assert 15 <= step <= 22
    assert (finding.rewards, finding.severity) == (("brevity", "correctness"), Severity.WARNING)
    assert "`brevity` rises while the watched `correctness` falls" in finding.message
    assert abs(finding.evidence["step"] - 11) <= 1
    assert abs(finding.evidence["fall"] - 1.0) < 2 * finding.evidence["fall_margin"]
    assert abs(finding.evidence["rise"] - 2.0) < 2 * finding.evidence["rise_margin"]
    assert "gate `brevity` on `correctness`" in finding.remedy


@pytest.mark.parametrize(
    "changed",
    [
        {"fall": 0.0},
        {"fall": -0.5},
        {"rise": 0.0},
        {"rise": -2.0},
        {"against": 0.0},
        {"against": -1.0},
        {"weights": (1, 1)},
        {"groups": 1},
        {"steps": 14},
    ],
    ids=str,
)
def test_nothing_is_reported_unless_all_conditions_hold(changed):
    """Neither part moves wrongly, nor without the update, nor in too few groups or steps."""
    assert parted(run(**changed)) == []


def test_a_reward_with_negative_weight_parts_by_falling():
    ((_, finding),) = parted(run(rise=-2.0, against=-1.0, weights=(-1, 0)))
    assert "`brevity` falls, as its weight demands, while" in finding.message


def test_a_watch_restored_between_goes_on_as_if_it_had_not_stopped():
    through, before = Watch(), Watch()
    diagnoses = list(run())
    for diagnosis in diagnoses[:13]:
        through.update(diagnosis)
        before.update(diagnosis)
    after = Watch()
    after.restore(json.loads(json.dumps(before.state())))
    for diagnosis in diagnoses[13:]:
        through.update(diagnosis)
        after.update(diagnosis)
        assert through.due == after.due
    assert through.state() == after.state()
    assert any(kind == "parted" for kind, _ in through.state()["reported"])


def test_the_course_has_a_bound_and_keeps_all_groups():
    course = Course()
    for number, diagnosis in enumerate(run(steps=150, groups=2), 1):
        course.add(diagnosis.influence, number)
    assert len(course.blocks) <= MOST_BLOCKS
    assert sum(block.steps for block in course.blocks) == 150
    assert sum(block.sums.groups for block in course.blocks) == 300
    firsts = [block.first for block in course.blocks]
    assert firsts == [1, *np.cumsum([b.steps for b in course.blocks])[:-1] + 1]


def test_nothing_is_kept_without_a_watch_only_reward():
    history = FindingHistory()
    for diagnosis in run(weights=(1, 1)):
        history.add(diagnosis.influence, diagnosis.findings)
    assert history.state()["course"] == []


def test_the_step_in_the_message_is_that_of_the_record():
    history = FindingHistory()
    for step, diagnosis in enumerate(run(), 1):
        history.add(diagnosis.influence, diagnosis.findings, number=100 * step)
    (held,) = [held for held in history.held() if held.finding.kind is Kind.PARTED]
    assert held.finding.evidence["step"] in (1000, 1100, 1200)
    assert held.certain
    assert held.spans[-1][1] == 30
