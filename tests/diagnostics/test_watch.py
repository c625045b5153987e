"""What is found over the steps of a run: which findings hold, for how long, when to warn."""

import json

import numpy as np
import pytest

from gdpo.diagnostics import Watch, diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.diagnostics.influence import pooled
from gdpo.diagnostics.watch import FindingHistory, Step

NAMES = ["big", "mid", "tiny"]
STDS = [10, 10, 0.01]


def steps(count, groups, *, stds=STDS, seed=0, samples=8, weights=None, estimator="grpo"):
    """The diagnosis of each step of a run whose third reward is 1,000 times smaller."""
    random = np.random.default_rng(seed)
    batches = random.standard_normal((count, groups, samples, len(stds))) * stds
    return [diagnose(batch, weights, NAMES[: len(stds)], estimator=estimator) for batch in batches]


def history_of(diagnoses):
    history = FindingHistory()
    for diagnosis in diagnoses:
        history.add(Step.of(diagnosis))
    return history


def constant(groups=16, value=0.5, *, high=1.0):
    """A step with a reward that does not vary."""
    rewards = np.random.default_rng(0).random((groups, 8, 2))
    rewards[:, :, 1] = value
    return diagnose(rewards, None, ["a", "b"], low=[0, 0], high=[1, high])


@pytest.mark.parametrize("seed", range(20))
def test_a_reward_that_is_ignored_on_every_step_is_found_whichever_of_two_others_dominates(seed):
    history = history_of(steps(20, 64, seed=seed))
    (held,) = [held for held in history.held() if held.finding.severity is Severity.WARNING]
    assert (held.finding.kind, held.finding.rewards) == (Kind.IGNORED, ("tiny",))
    assert (held.steps, held.of, held.spans) == (20, 20, ((1, 20),))
    assert held.lasting
    assert held.certain


@pytest.mark.parametrize(
    ("held", "of", "lasting", "certain"),
    [(4, 4, True, False), (4, 9, False, False), (5, 9, True, True)],
)
def test_a_finding_of_single_batches_lasts_from_five_in_a_row_or_throughout(
    held, of, lasting, certain
):
    history = history_of([constant()] * held + steps(of - held, 16, stds=[1, 1]))
    (finding,) = [each for each in history.held() if each.finding.rewards == ("b",)]
    assert (finding.steps, finding.in_a_row, finding.of) == (held, held, of)
    assert (finding.lasting, finding.certain) == (lasting, certain)


def test_the_message_names_the_reward_that_dominates_now_and_the_finding_stays_one():
    history = FindingHistory()
    for stds in ([10, 1, 0.001], [1, 10, 0.001]):
        for diagnosis in steps(8, 64, stds=stds):
            history.add(Step.of(diagnosis))
    (held,) = [held for held in history.held() if held.finding.rewards == ("tiny",)]
    assert (held.steps, held.of) == (16, 16)
    assert "`mid` has 9" in held.finding.message


@pytest.mark.parametrize("groups", [1, 2, 4, 16, 64])
def test_the_same_groups_give_the_same_share_however_they_are_divided_into_steps(groups):
    random = np.random.default_rng(3)
    rewards = random.standard_normal((256, 8, 3)) * STDS
    whole = diagnose(rewards, None, NAMES, estimator="grpo").influence
    parts = rewards.reshape(-1, groups, 8, 3)
    each = [diagnose(part, None, NAMES, estimator="grpo").influence for part in parts]
    cut = pooled([step.after(last) for step, last in zip(each, [None, *each], strict=False)])
    np.testing.assert_allclose(cut.shares, whole.shares, rtol=1e-9)
    np.testing.assert_allclose(cut.correlations, whole.correlations, rtol=1e-9)
    np.testing.assert_allclose(cut.asked_correlations, whole.asked_correlations, rtol=1e-9)
    np.testing.assert_allclose(cut.margins, whole.margins, rtol=0.15)
    assert abs(whole.shares[2]) < 0.05
    assert np.all(np.abs(whole.shares - [0.5, 0.5, 0]) < 1.5 * whole.margins)


def test_the_window_holds_the_last_256_groups_and_what_was_before_is_forgotten():
    history = FindingHistory()
    for diagnosis in [*steps(8, 64), *steps(8, 64, stds=[1, 1, 1])]:
        window, findings = history.add(Step.of(diagnosis))
    assert window.groups == 256
    np.testing.assert_allclose(window.shares, [1 / 3] * 3, atol=0.1)
    assert not findings
    (held,) = [held for held in history.held() if held.finding.kind is Kind.IGNORED]
    assert held.spans[0][0] == 1
    assert 8 <= held.spans[0][1] <= 10


def test_all_groups_together_find_what_the_last_ones_are_too_few_for():
    """A weight of a twentieth asks for a correlation that 256 groups cannot tell from nothing."""
    few = steps(4, 64, stds=[10, 1], weights=[1, 0.05], samples=4)
    many = steps(80, 256, stds=[10, 1], weights=[1, 0.05], samples=4)
    assert not history_of(few).held()
    (held,) = history_of(many).held()
    assert (held.finding.kind, held.finding.rewards) == (Kind.IGNORED, ("mid",))
    assert held.finding.evidence["groups"] == 80 * 256
    assert held.spans == ((1, 80),)


def test_a_reward_that_comes_late_or_goes_counts_for_the_steps_that_have_it():
    two = [
        diagnose(np.random.default_rng(s).random((64, 8, 2)), None, ["a", "b"]) for s in range(2)
    ]
    three = [
        diagnose(np.random.default_rng(s).random((64, 8, 2)), None, ["b", "c"]) for s in range(2)
    ]
    total = pooled([step.influence for step in (*two, *three)])
    assert total.names == ("a", "b", "c")
    np.testing.assert_allclose(total.weight_shares, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(total.shares, [0.25, 0.5, 0.25], atol=0.02)
    watch = Watch()
    for diagnosis in (*two, *three):
        seen = watch.update(diagnosis)
    assert [reward.name for reward in seen.rewards] == ["b", "c"]


def test_other_findings_must_hold_for_five_steps_in_a_row():
    watch = Watch()
    reported = []
    for value in (0.5, 0.5, None, *[0.5] * 6):
        diagnosis = (
            constant()
            if value is not None
            else diagnose(np.random.default_rng(1).random((16, 8, 2)), None, ["a", "b"])
        )
        watch.update(diagnosis)
        reported.append([finding.kind for finding in watch.due])
    assert reported == [[]] * 7 + [[Kind.CONSTANT]] + [[]]


def of_few_groups(case, step, groups):
    """A step whose second reward does not vary, or in which nothing varies."""
    rewards = np.random.default_rng(step).random((groups, 8, 2))
    rewards[:, :, 1] = {"constant": 0.5, "out_of_reach": 0.0, "saturated": 1.0}.get(case, 0.0)
    if case == "below_resolution":
        rewards[:, :, 1] = 1e9 * (1 + 1e-16 * rewards[:, :, 0])
        rewards[:, 0, 1] = np.nextafter(1e9, 2e9)
    if case == "no_signal":
        rewards[:] = 0.5
    bounds = {} if case == "below_resolution" else {"low": [0, 0], "high": [1, 1]}
    return diagnose(rewards, None, ["a", "b"], **bounds)


@pytest.mark.parametrize(("groups", "due"), [(1, 20), (2, 10), (3, 7), (6, 5), (8, 5)])
@pytest.mark.parametrize("case", ["constant", "out_of_reach", "below_resolution", "no_signal"])
def test_a_share_of_few_groups_is_a_warning_once_the_last_groups_confirm_it(case, groups, due):
    watch, reported = Watch(), []
    for step in range(1, 31):
        watch.update(of_few_groups(case, step, groups))
        reported += [(step, f.kind, f.message) for f in watch.due if f.kind == case]
    ((step, _, message),) = reported
    assert step == due
    assert ("Over the last" in message) == (groups < 7)


def test_a_reward_at_the_top_of_its_range_stays_a_note_however_many_groups_confirm_it():
    watch = Watch()
    for step in range(1, 41):
        watch.update(of_few_groups("saturated", step, 1))
        assert not [finding for finding in watch.due if finding.rewards]


def test_a_reward_that_varied_before_is_constant_once_nearly_all_of_the_last_groups_are():
    watch, steps_of = Watch(), []
    for step in range(1, 301):
        case = "saturated" if step % 2 and step <= 100 else "constant"
        varying = diagnose(np.random.default_rng(step).random((3, 8, 2)), None, ["a", "b"])
        watch.update(varying if case == "saturated" else of_few_groups(case, step, 3))
        steps_of += [step for finding in watch.due if finding.kind is Kind.CONSTANT]
    # Of the last 86 steps (256 groups), the 8 odd ones from 85 to 99 vary: less than 10 %.
    assert steps_of == [169]


def test_a_state_without_the_numbers_of_groups_confirms_nothing():
    before = Watch()
    for step in range(1, 19):
        before.update(of_few_groups("constant", step, 1))
    state = json.loads(json.dumps(before.state()))
    for each in (*state["history"]["window"], state["history"]["last"], state["history"]["all"]):
        each["table"] = each["table"][:9]
    after = Watch()
    after.restore(state)
    for step in range(19, 39):
        after.update(of_few_groups("constant", step, 1))
        assert bool(after.due) == (step == 38)


def test_a_short_run_has_to_show_a_finding_throughout():
    history = history_of([constant()] * 3)
    assert history.held()[0].finding.kind is Kind.CONSTANT
    assert all(held.lasting for held in history.held())
    assert not any(held.certain for held in history.held())


def test_notes_are_not_reported():
    watch = Watch()
    for _ in range(8):
        diagnosis = watch.update(constant(value=1.0))
        assert watch.due == []
    assert Kind.SATURATED in {finding.kind for finding in diagnosis.findings}


def test_each_warning_is_reported_once():
    watch = Watch()
    reported = []
    for diagnosis in steps(12, 64):
        watch.update(diagnosis)
        reported += watch.due
    assert [(finding.kind, finding.rewards) for finding in reported] == [(Kind.IGNORED, ("tiny",))]


def test_a_watched_diagnosis_has_the_shares_of_the_last_groups():
    watch = Watch()
    for diagnosis in steps(40, 4, stds=[1, 1, 1], estimator="gdpo"):
        seen = watch.update(diagnosis)
    alone, over = diagnosis.rewards[2], seen.rewards[2]
    assert over.influence_margin < alone.influence_margin / 3
    assert abs(over.influence_share - 1 / 3) < over.influence_margin * 2
    assert over.mean == alone.mean


def test_a_watch_goes_on_from_its_state_as_if_it_had_not_stopped():
    diagnoses = steps(90, 1) + steps(40, 4)
    through, before = Watch(), Watch()
    for diagnosis in diagnoses[:70]:
        through.update(diagnosis)
        before.update(diagnosis)
    after = Watch()
    after.restore(json.loads(json.dumps(before.state())))
    for diagnosis in diagnoses[70:]:
        assert through.update(diagnosis) == after.update(diagnosis)
        assert through.due == after.due
    after.restore({})
    assert through.state() == after.state()


def test_steps_of_one_group_show_their_variance_by_their_differences():
    one = [diagnosis.influence for diagnosis in steps(64, 1)]
    assert np.all(np.isnan(pooled(one).margins))
    after = [step.after(last) for step, last in zip(one, [None, *one], strict=False)]
    assert pooled(after).sampled == 63
    assert np.all(pooled(after).margins > 0.01)


@pytest.mark.slow
def test_the_margin_of_a_share_is_that_of_a_bootstrap_over_the_groups():
    random = np.random.default_rng(5)
    rewards = random.standard_normal((400, 8, 3)) * [2, 1, 0.5]
    whole = diagnose(rewards, None, NAMES, estimator="grpo").influence
    drawn = [
        diagnose(rewards[random.integers(0, 400, 400)], None, NAMES, estimator="grpo")
        for _ in range(200)
    ]
    stds = np.std([diagnosis.influence.shares for diagnosis in drawn], axis=0)
    np.testing.assert_allclose(whole.margins, 1.96 * stds, rtol=0.2)


def test_a_level_of_the_advantages_of_each_prompt_changes_no_correlation():
    random = np.random.default_rng(6)
    rewards = random.standard_normal((64, 8, 2))
    advantages = rewards.sum(axis=-1) - rewards.sum(axis=-1).mean(axis=1, keepdims=True)
    levels = 20 * random.standard_normal((64, 1))
    plain, moved = (
        diagnose(rewards, None, ["a", "b"], advantages=a).influence
        for a in (advantages, advantages + levels)
    )
    np.testing.assert_allclose(moved.correlations, plain.correlations, rtol=1e-9)
    np.testing.assert_allclose(moved.shares, plain.shares, rtol=1e-9)
