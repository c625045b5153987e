"""A trained reward that rises while a watch-only reward falls."""

import json

import numpy as np
import pytest

from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics._parting import MOST_BLOCKS, Course
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.watch import FindingHistory, Step

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


SIDES = np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
ACROSS = np.array([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
"""Within a group, the advantage is `SIDES`. `ACROSS` is uncorrelated with the advantage."""


def exact(*, fall=0.89, rise=0.51, against=0.18, missing=(), weights=(1, 0)):
    """The diagnosis of each of 20 or more steps of 8 groups whose numbers can be computed by hand.

    `fall` and `rise` are the changes after step 10, or the levels of all steps. The group means are
    the level ± 1, so the standard deviation of the means is √(1 + change² / 4) over both windows.
    Each window has 80 groups, and a change is divided by this value times √(2 / 80). `against` is
    the negative correlation with the advantage: one number, or one for each step. 10 steps have
    560 degrees of freedom. The defaults are 5.1, 3.1 and 4.3 standard errors.
    """
    half = np.repeat([0.0, 1.0], 10)
    rise, fall = (half * each if np.ndim(each) == 0 else np.array(each) for each in (rise, fall))
    spread = np.tile([1.0, -1.0], 4)[:, None]
    for step, rho in enumerate(np.broadcast_to(against, len(fall)), 1):
        brevity = spread + rise[step - 1] + SIDES
        correctness = spread - fall[step - 1] - rho * SIDES + np.sqrt(1 - rho**2) * ACROSS
        if step in missing:
            correctness = np.full((8, 8), np.nan)
        batch = np.stack([brevity, correctness], axis=-1)
        yield diagnose(batch, list(weights), NAMES, advantages=np.tile(SIDES, (8, 1)))


def course_of(diagnoses):
    course = Course()
    for number, diagnosis in enumerate(diagnoses, 1):
        course.add(diagnosis.influence, number)
    return course


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
    assert 20 <= step <= 24
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
        {"steps": 19},
    ],
    ids=str,
)
def test_nothing_is_reported_unless_all_conditions_hold(changed):
    """Neither part moves wrongly, nor without the update, nor in too few groups or steps."""
    assert parted(run(**changed)) == []


@pytest.mark.parametrize(
    "changed", [{"fall": 0.83}, {"rise": 0.46}, {"against": 0.15}, {"weights": (0, 0)}], ids=str
)
def test_a_little_less_than_each_limit_is_not_reported(changed):
    """4.8 instead of 5.1, 2.8 instead of 3.1, and 3.5 instead of 4.3 standard errors."""
    assert list(course_of(exact()).findings())
    assert not list(course_of(exact(**changed)).findings())


@pytest.mark.parametrize(("groups", "first"), [(16, 20), (4, 32)])
def test_each_window_needs_10_steps_and_64_groups(groups, first):
    """A change that is clear at once is reported as soon as both windows are long enough."""
    diagnoses = run(steps=first, groups=groups, start=first // 2, fall=3.0, rise=3.0)
    ((step, _),) = parted(diagnoses)
    assert step == first


def test_a_window_after_the_fall_is_never_shorter_than_10_steps():
    course = Course()
    for number, diagnosis in enumerate(run(start=24, fall=3.0, rise=3.0), 1):
        course.add(diagnosis.influence, number)
        assert all(steps >= 10 for _, steps in course.findings())


@pytest.mark.parametrize(
    "against", [[0.0] * 19 + [1.0], [1.0] * 10 + [0.0] * 10], ids=["last step", "before the fall"]
)
def test_the_update_must_lower_the_watched_reward_where_it_falls(against):
    assert list(course_of(exact(against=[0.0] * 10 + [0.18] * 10)).findings())
    assert not list(course_of(exact(against=against)).findings())


def test_rise_and_fall_at_different_times_do_not_part():
    """`brevity` only rises after `correctness` has fallen, to half of its first value."""
    rise = np.repeat([2.0, 0.0, 1.0], 10)
    fall = np.repeat([0.0, 1.5, 1.5], 10)
    assert not list(course_of(exact(rise=rise, fall=fall, against=0.5)).findings())
    assert list(course_of(exact(rise=fall, fall=fall, against=0.5)).findings())


def test_steps_that_share_a_difficulty_prove_less_than_their_groups():
    """If steps differ by ± 1, the variance of 20 steps of 8 groups is 8 · 20 / 18.

    A fall of 2.3 is 4.9 standard errors, and a fall of 2.4 is 5.1.
    """
    shared, late = np.tile([-1.0, 1.0], 10), np.repeat([0.0, 1.0], 10)
    assert list(course_of(exact(fall=2.3 * late)).findings())
    assert not list(course_of(exact(fall=2.3 * late + shared)).findings())
    assert list(course_of(exact(fall=2.4 * late + shared)).findings())


@pytest.mark.parametrize(("level", "steps"), [(0.1, 40), (1e9 / 7, 34)])
def test_a_fall_by_rounding_is_no_fall(level, steps):
    """The group means are all equal, and their sums differ by 1e-17 and 6e-8 per group."""
    course = Course()
    for number in range(1, steps + 1):
        late = number > 20
        brevity = np.tile([1.0, -1.0], 4)[:, None] + 3.0 * late + SIDES
        correctness = np.tile(level - level * SIDES, (8, 1))
        batch = np.stack([brevity, correctness], axis=-1)
        step = diagnose(batch, [1, 0], NAMES, advantages=np.tile(SIDES, (8, 1)))
        course.add(step.influence, number)
        assert not list(course.findings())


def test_the_margins_are_95_percent_intervals():
    ((finding, steps),) = course_of(exact()).findings()
    evidence = finding.evidence
    assert evidence["fall"] == pytest.approx(0.89)
    assert evidence["fall_margin"] == pytest.approx(0.339, abs=1e-3)
    assert evidence["rise"] == pytest.approx(0.51)
    assert evidence["rise_margin"] == pytest.approx(0.320, abs=1e-3)
    assert (evidence["step"], steps) == (11, 10)


def test_a_step_without_the_watched_reward_does_not_count():
    diagnoses = list(exact(fall=3.0, against=0.5))
    gap = next(exact(missing=(1,)))
    assert list(course_of([gap, *diagnoses]).findings())
    assert not list(course_of(exact(fall=3.0, against=0.5, missing=range(12, 21))).findings())


def test_a_reward_that_gets_a_weight_is_watched_no_longer():
    course = course_of(exact())
    assert list(course.findings())
    course.add(next(exact(weights=(1, 1))).influence, 21)
    assert not list(course.findings())


def test_a_reward_with_negative_weight_parts_by_falling():
    ((_, finding),) = parted(run(rise=-2.0, against=-1.0, weights=(-1, 0)))
    assert "`brevity` falls (negative weight) while" in finding.message


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
    diagnosis = next(run(steps=1, groups=2))
    course = course_of([diagnosis] * 150)
    assert len(course.blocks) <= MOST_BLOCKS
    assert [block.steps for block in course.blocks] == [4] * 37 + [2]
    assert sum(block.sums.groups for block in course.blocks) == 300
    assert [block.first for block in course.blocks] == list(range(1, 151, 4))
    one = course_of([diagnosis]).blocks[0].squares
    for block in course.blocks:
        assert block.squares == pytest.approx({k: block.steps * v for k, v in one.items()})


def test_a_restored_course_goes_on_with_blocks_of_the_same_length():
    diagnosis = next(run(steps=1, groups=2))
    through, again = course_of([diagnosis] * 130), Course()
    again.restore(through.blocks)
    for number in range(131, 136):
        through.add(diagnosis.influence, number)
        again.add(diagnosis.influence, number)
    assert [block.steps for block in again.blocks] == [4] * 33 + [3]
    assert [block.first for block in again.blocks] == [block.first for block in through.blocks]


def test_nothing_is_kept_without_a_watch_only_reward():
    history = FindingHistory()
    for diagnosis in run(weights=(1, 1)):
        history.add(Step.of(diagnosis))
    assert history.state()["course"] == []


def test_the_step_in_the_message_is_that_of_the_record():
    history = FindingHistory()
    for step, diagnosis in enumerate(run(), 1):
        _, now = history.add(Step.of(diagnosis), number=100 * step)
    (held,) = [held for held in history.held() if held.finding.kind is Kind.PARTED]
    assert held.finding.evidence["step"] in (1000, 1100, 1200)
    assert held.certain
    assert held.finding in now
    ((first, last),) = held.spans
    assert first in (10, 11, 12)
    assert last == 30
