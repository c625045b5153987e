"""What is found over the steps of a run: which findings hold, for how long, when to warn."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose

from gdpo.diagnostics import Thresholds, Watch, diagnose
from gdpo.diagnostics.diagnosis import Finding, Kind, Severity
from gdpo.diagnostics.influence import pooled
from gdpo.diagnostics.looks import holds
from gdpo.diagnostics.watch import FindingHistory, HeldFinding, Last, _is_apart

NAMES = ["big", "mid", "tiny"]
STDS = [10, 10, 0.01]


def diagnosed(rewards, weights=None, *, estimator="grpo", **options):
    names = NAMES[: rewards.shape[-1]]
    return diagnose(rewards, weights, names, estimator=estimator, **options)


def steps(count, groups, *, stds=STDS, seed=0, samples=8, weights=None, estimator="grpo"):
    """The diagnosis of each step of a run whose third reward is 1,000 times smaller."""
    random = default_rng(seed)
    batches = random.standard_normal((count, groups, samples, len(stds))) * stds
    return [diagnosed(batch, weights, estimator=estimator) for batch in batches]


def random_of(groups, seed=0):
    """Random values `[prompt, sample, reward]` of two rewards."""
    return default_rng(seed).random((groups, 8, 2))


def of_two(rewards, **options):
    return diagnose(rewards, None, ["a", "b"], **options)


def said_of(held):
    return held.finding.kind, held.finding.rewards


def judged(held):
    return held.finding.kind, held.finding.severity


def history_of(diagnoses):
    history = FindingHistory()
    for diagnosis in diagnoses:
        history.add(diagnosis)
    return history


def due_in(diagnoses):
    """Yield each finding that is due, after its step."""
    watch = Watch()
    for step, diagnosis in enumerate(diagnoses, 1):
        watch.update(diagnosis)
        for finding in watch.due:
            yield step, finding


def at_the_end(diagnoses):
    """The findings of a finished run."""
    count = -(-len(diagnoses) // 4)
    while sum(each.prompts for each in diagnoses[-count:]) < 64 and count < len(diagnoses):
        count += 1
    last, first = diagnoses[-count:], len(diagnoses) - count + 1
    of_last = Last(pooled([each.influence for each in last]), count, first)
    return history_of(diagnoses).held_at_the_end(of_last)


def redundant():
    """A step with two rewards that say the same."""
    rewards = np.repeat(default_rng(0).random((16, 8, 1)), 2, axis=2)
    return of_two(rewards)


MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20)]


@pytest.mark.parametrize("seed", [*range(4), *MORE])
def test_a_reward_that_is_ignored_on_every_step_is_found_whichever_of_two_others_dominates(seed):
    history = history_of(steps(20, 64, seed=seed, samples=64))
    (held,) = [held for held in history.held() if held.finding.severity is Severity.WARNING]
    assert said_of(held) == (Kind.IGNORED, ("tiny",))
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
    history = history_of([redundant()] * held + steps(of - held, 16, stds=[1, 1]))
    (finding,) = [each for each in history.held() if each.finding.kind is Kind.REDUNDANT]
    assert (finding.steps, finding.in_a_row, finding.of) == (held, held, of)
    assert (finding.lasting, finding.certain) == (lasting, certain)


@pytest.mark.parametrize("groups", [1, 2, 4, 16, 64])
def test_the_same_groups_give_the_same_share_however_they_are_divided_into_steps(groups):
    random = default_rng(3)
    rewards = random.standard_normal((256, 8, 3)) * STDS
    whole = diagnosed(rewards).influence
    parts = rewards.reshape(-1, groups, 8, 3)
    each = [diagnosed(part).influence for part in parts]
    cut = pooled(each)
    assert_allclose(cut.shares, whole.shares, rtol=1e-9)
    assert_allclose(cut.sums, whole.sums, rtol=1e-9, atol=1e-9)
    assert_allclose(cut.margins, whole.margins, rtol=1e-9)
    assert abs(whole.shares[2]) < 0.05
    assert np.all(np.abs(whole.shares - [0.5, 0.5, 0]) < 1.5 * whole.margins)


def test_the_window_holds_the_last_256_groups_and_what_was_before_is_forgotten():
    history = FindingHistory()
    for diagnosis in [*steps(8, 64), *steps(8, 64, stds=[1, 1, 1])]:
        window, findings = history.add(diagnosis)
    assert window.groups == 256
    assert_allclose(window.shares, [1 / 3] * 3, atol=0.1)
    assert not findings


def test_long_blocks_find_what_short_ones_are_too_few_for():
    """A weight of a twentieth asks for a share that 64 groups cannot distinguish from 0."""
    few = steps(4, 64, stds=[10, 0.1], weights=[1, 0.05], samples=16)
    many = steps(80, 256, stds=[10, 0.1], weights=[1, 0.05], samples=16)
    assert not history_of(few).held()
    (held,) = history_of(many).held()
    assert said_of(held) == (Kind.IGNORED, ("mid",))
    assert held.finding.evidence["groups"] == 256
    assert held.spans[0][0] == 1


def test_a_reward_that_comes_late_or_goes_counts_for_the_steps_that_have_it():
    two = [of_two(random_of(64, s)) for s in range(2)]
    three = [diagnose(random_of(64, s), None, ["b", "c"]) for s in range(2)]
    total = pooled([step.influence for step in (*two, *three)])
    assert total.names == ("a", "b", "c")
    assert_allclose(total.weight_shares, [0.25, 0.5, 0.25])
    assert_allclose(total.shares, [0.25, 0.5, 0.25], atol=0.02)
    watch = Watch()
    for diagnosis in (*two, *three):
        seen = watch.update(diagnosis)
    assert [reward.name for reward in seen.rewards] == ["b", "c"]


def test_other_findings_must_hold_for_five_steps_in_a_row():
    watch, (other,) = Watch(), steps(1, 16, stds=[1, 1])
    reported, kinds = [], []
    for diagnosis in (redundant(), redundant(), other, *[redundant()] * 6):
        seen = watch.update(diagnosis)
        reported.append([finding.kind for finding in watch.due])
        kinds.append([finding.kind for finding in seen.findings])
    assert reported == [[]] * 7 + [[Kind.REDUNDANT]] + [[]]
    assert kinds == [[]] * 7 + [[Kind.REDUNDANT]] * 2


def of_few_groups(case, step, groups):
    """A step whose second reward does not vary, or in which nothing varies."""
    rewards = random_of(groups, step)
    rewards[:, :, 1] = {"constant": 0.5, "out_of_reach": 0.0, "saturated": 1.0}.get(case, 0.0)
    if case == "below_resolution":
        rewards[:, :, 1] = 1e9 * (1 + 1e-16 * rewards[:, :, 0])
        rewards[:, 0, 1] = np.nextafter(1e9, 2e9)
    if case == "no_signal":
        rewards[:] = 0.5
    bounds = {} if case == "below_resolution" else {"low": [0, 0], "high": [1, 1]}
    return of_two(rewards, **bounds)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3, 8, 100])
@pytest.mark.parametrize("case", ["constant", "out_of_reach", "below_resolution", "no_signal"])
def test_what_never_varies_is_due_once_64_groups_show_it_and_64_more_measure_it(case, groups):
    diagnoses = [of_few_groups(case, step, groups) for step in range(140 // groups + 7)]
    reported = [(step, f.severity) for step, f in due_in(diagnoses) if f.kind == case]
    of_a_part = -(-64 // groups)
    lasting = case == "below_resolution" and groups > 6
    assert reported == [(5 if lasting else 2 * of_a_part, Severity.WARNING)]
    (held,) = [each for each in history_of(diagnoses).held() if each.finding.kind == case]
    assert held.finding.severity is Severity.WARNING
    assert held.certain


def test_a_reward_at_the_top_of_its_range_stays_a_note_however_many_groups_confirm_it():
    watch = Watch()
    for step in range(1, 41):
        watch.update(of_few_groups("saturated", step, 1))
        assert not [finding for finding in watch.due if finding.rewards]
    learned = [of_few_groups("saturated", step, 16) for step in range(8)]
    (held,), history = at_the_end(learned), history_of(learned)
    assert (held.finding.kind, held.steps) == (Kind.SATURATED, 8)
    (other,) = steps(1, 64, stds=[1, 1])
    history.add(other)
    assert history.learned() == ("b",)


def test_a_reward_that_stops_varying_is_constant_once_whole_blocks_are():
    diagnoses = [of_two(random_of(4, step)) for step in range(10)]
    diagnoses += [of_few_groups("constant", step, 4) for step in range(70)]
    # The second block of 16 steps is the first without the 10 that vary; the third measures it.
    assert [step for step, f in due_in(diagnoses) if f.kind is Kind.CONSTANT] == [48]


def test_a_finished_run_shows_at_once_what_a_short_one_could_not_measure():
    assert not history_of(steps(2, 40)).held()
    (held,) = at_the_end(steps(2, 40))
    assert said_of(held) == (Kind.IGNORED, ("tiny",))
    assert (held.spans, held.at_once, held.lasting, held.certain) == (((1, 2),), True, True, False)
    longer = at_the_end(steps(8, 40))
    assert [(each.at_once, each.finding.evidence["groups"]) for each in longer] == [(False, 320)]


def test_what_only_a_part_of_the_run_showed_is_a_fact_of_the_past_without_a_remedy():
    (part,) = at_the_end(steps(4, 64) + steps(60, 64, stds=[1, 1, 1]))
    assert (part.finding.kind, part.past, part.at_once) == (Kind.IGNORED, True, False)
    assert (part.finding.severity, part.finding.remedy) == (Severity.NOTE, "")
    assert part.finding.evidence["groups"] == 64
    assert part.spans[-1][1] < 10


def test_a_finding_of_single_batches_is_past_unless_a_step_of_the_last_quarter_has_it():
    for later, past in ((8, True), (1, False)):
        (held,) = at_the_end([redundant()] * 8 + steps(later, 16, stds=[1, 1]))
        assert (held.finding.kind, held.past) == (Kind.REDUNDANT, past)


def test_the_last_quarter_ends_a_finding_of_the_whole_run_or_adds_one():
    awake, asleep = steps(8, 64, stds=[1, 1]), steps(24, 64, stds=[1, 0.01])
    assert all(held.past for held in at_the_end(asleep + awake))
    (late,) = at_the_end(awake * 3 + asleep[:8])
    assert (late.finding.kind, late.spans, late.past) == (Kind.IGNORED, ((25, 32),), False)
    assert late.lasting
    assert (late.finding.evidence["groups"], late.finding.evidence["from_step"]) == (512, 25)
    assert "over 512 groups from step 25" in late.finding.message


def never(count, groups, *, rate=0.0):
    """Steps whose second reward is missing from all groups but this share of them."""
    random, diagnoses = default_rng(0), []
    for _ in range(count):
        rewards = random.random((groups, 8, 2))
        rewards[random.random(groups) >= rate, :, 1] = np.nan
        diagnoses.append(of_two(rewards, estimator="grpo"))
    return diagnoses


@pytest.mark.parametrize("groups", [1, 8, 64])
def test_a_reward_never_applies_if_36_groups_and_all_so_far_lack_it(groups):
    ((step, due),) = due_in(never(36 // groups + 2, groups))
    at = -(-36 // groups)
    assert (step, due.kind, due.evidence["groups"]) == (at, Kind.NEVER_APPLIES, at * groups)


def test_a_reward_that_came_late_was_missing_only_before_and_one_that_few_groups_lack_is_named():
    other = never(32, 16, rate=1.0)
    (before,) = [h for h in at_the_end(never(8, 16) + other) if h.past]
    assert (before.finding.kind, before.spans) == (Kind.NEVER_APPLIES, ((1, 8),))
    assert before.finding.evidence["groups"] == 128
    (few,) = at_the_end(never(2, 4))
    assert judged(few) == (Kind.NEVER_APPLIES, Severity.WARNING)
    assert not few.certain


def test_a_part_that_was_out_of_reach_stays_beside_a_reward_that_is_ignored_throughout():
    """As long as it is out of reach, the whole run tells the same."""
    reachable, out = steps(40, 64, stds=[10, 0.1]), []
    for seed in range(8):
        rewards = random_of(64, seed)
        rewards[..., 1] = -0.4
        out.append(diagnosed(rewards, low=[0, -0.4], high=[1, 1]))
    (whole, part) = sorted(at_the_end(out + reachable), key=lambda h: -h.steps)
    assert (whole.finding.kind, whole.steps) == (Kind.IGNORED, 48)
    assert part.finding.kind is Kind.OUT_OF_REACH
    assert part.spans[0][0] == 1
    assert 8 <= part.spans[0][1] <= 12
    assert [h.finding.kind for h in at_the_end(out)] == [Kind.OUT_OF_REACH]
    (same,) = at_the_end(reachable + out)
    assert (same.finding.kind, same.steps) == (Kind.IGNORED, 48)


def test_what_the_whole_run_shows_hides_no_finding_of_single_batches_about_the_same_reward():
    diagnoses, random = [], default_rng(0)
    for _ in range(8):
        rewards = random.random((64, 8, 2)) * [1, 0.01]
        rewards[random.random((64, 8)) < 0.92, 1] = np.nan
        diagnoses.append(diagnosed(rewards))
    kinds = {h.finding.kind for h in at_the_end(diagnoses) if h.finding.rewards == ("mid",)}
    assert kinds == {Kind.IGNORED, Kind.MOSTLY_MISSING}


@pytest.mark.parametrize(
    ("groups", "size", "rates"), [(64, 1, [0.02, 0.99, 0.5]), (256, 0.02, [0.5, 0.99])]
)
def test_a_block_at_whose_end_a_reward_is_learned_shows_no_effect_of_it(groups, size, rates):
    """It is rare in the first half of the block, learned in the second, and healthy after that.

    Or it is small and noticed in the first half, and learned when it is measured in the second.
    """
    history, random = FindingHistory(), default_rng(0)
    for rate in rates:
        rewards = random.random((groups, 8, 2))
        rewards[..., 1] = size * (random.random((groups, 8)) < rate)
        history.add(of_two(rewards, estimator="grpo"))
    assert not history.held()


def test_a_learned_reward_is_measured_once_and_again_only_if_it_is_lost():
    watch, history, due, random = Watch(), FindingHistory(), [], default_rng(0)
    for step in range(24):
        rewards = random.random((64, 8, 2))
        rewards[..., 1] = step < 16
        rewards[: step % 3, 0, 1] = 0  # each block has another mean
        diagnosis = of_two(rewards, low={"b": 0}, high={"b": 1})
        watch.update(diagnosis)
        history.add(diagnosis)
        due += [(finding.kind, step) for finding in watch.due]
        if step in (2, 15):
            (held,) = history.held()
            assert held.finding.kind is Kind.SATURATED
            assert "from step" not in held.finding.message
            assert held.finding.evidence["saturation"] == pytest.approx(1 - 1 / 512)
    ((kind, at),) = due
    assert kind is Kind.OUT_OF_REACH
    assert 17 <= at <= 19
    (lost,) = history.held()
    assert lost.finding.kind is Kind.OUT_OF_REACH
    assert lost.spans[0][0] == 17


def test_a_constant_reward_is_a_note_where_too_few_groups_show_it_and_none_if_lost_to_rounding():
    constant = of_few_groups("constant", 0, 16)
    (held,) = at_the_end([constant] * 2)
    assert judged(held) == (Kind.CONSTANT, Severity.NOTE)
    (held,) = at_the_end([constant] * 8)
    assert judged(held) == (Kind.CONSTANT, Severity.WARNING)
    assert held.finding.evidence["groups"] == 128
    lost = at_the_end([of_few_groups("below_resolution", step, 16) for step in range(8)])
    assert [held.finding.kind for held in lost] == [Kind.BELOW_RESOLUTION]


def test_a_note_gives_way_to_a_warning_which_is_due_once():
    scales = [*[[1, 0.08]] * 16, *[[1, 0.001]] * 16]
    diagnoses = [
        diagnosis
        for seed, stds in enumerate(scales)
        for diagnosis in steps(1, 64, stds=stds, seed=seed, samples=64)
    ]
    (note,) = history_of(diagnoses[:16]).held()
    assert judged(note) == (Kind.IGNORED, Severity.NOTE)
    assert note.spans == ((1, 16),)
    ((step, due),) = due_in(diagnoses)
    assert (due.kind, step > 16) == (Kind.IGNORED, True)
    (held,) = history_of(diagnoses).held()
    assert held.finding.severity is Severity.WARNING
    assert held.spans[-1][1] == 32


def test_a_finding_ends_when_the_last_groups_contradict_it_and_comes_back():
    history = history_of(steps(8, 64) + steps(8, 64, stds=[1, 1, 1]) + steps(8, 64))
    (held,) = [held for held in history.held() if held.finding.kind is Kind.IGNORED]
    (first, second) = held.spans
    assert first[0] == 1
    assert 8 <= first[1] <= 10
    assert second[0] > 16
    assert second[1] == 24


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_learned_reward_has_no_effect_and_needs_none(declared, sign):
    """The range is declared, or observed in the run. A penalty is learned at the bottom."""
    watch, diagnoses, due = Watch(), [], []
    random = default_rng(0)
    bounds = {"low": {"b": 0}, "high": {"b": 1}} if declared else {}
    for step in range(60):
        rewards = random.random((16, 8, 2))
        rate = 0.5 if step < 10 else 0.97
        rewards[..., 1] = random.random((16, 8)) < (rate if sign > 0 else 1 - rate)
        diagnosis = diagnose(rewards, [1, sign], ["a", "b"], **bounds)
        diagnoses.append(diagnosis)
        seen = watch.update(diagnosis)
        due += [finding.kind for finding in watch.due]
    assert due == []
    assert seen.rewards[1].influence_share < 0.2
    assert history_of(diagnoses).learned() == ("b",)
    assert not at_the_end(diagnoses)


def test_a_watched_diagnosis_has_the_shares_of_the_last_groups():
    watch = Watch()
    for diagnosis in steps(20, 32, stds=[1, 1, 1], estimator="gdpo"):
        seen = watch.update(diagnosis)
    alone, over = diagnosis.rewards[2], seen.rewards[2]
    assert over.influence_margin < alone.influence_margin / 2
    assert abs(over.influence_share - 1 / 3) < over.influence_margin * 2
    assert over.mean == alone.mean


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_watch_goes_on_from_its_state_as_if_it_had_not_stopped(dtype):
    """In the first block, and while something is measured, before and after its first group."""
    random, through, others, due = default_rng(0), Watch(), [], []
    for step, groups in enumerate([1] * 90 + [4] * 32):
        if step in (9, 64, 98):
            state = json.loads(json.dumps(through.state()))
            assert bool(state["history"]["measuring"]) == (step > 9)
            others.append(Watch())
            others[-1].restore(state)
        rewards = (random.random((groups, 64, 3)) * STDS).astype(dtype)
        rewards[random.random(rewards.shape) < 0.1] = np.nan
        weights = np.tile([1.0, 0.5, -1.0], (groups, 1))
        diagnosis = diagnosed(rewards, weights)
        seen = through.update(diagnosis).as_dict()
        said = json.dumps(list(map(asdict, through.due)))
        for other in others:
            assert other.update(diagnosis).as_dict() == seen
            assert json.dumps(list(map(asdict, other.due))) == said
        due += [(step, finding.rewards) for finding in through.due]
    ((step, rewards),) = due
    assert (rewards, step >= 98) == (("tiny",), True)
    for other in others:
        other.restore({})
        assert json.dumps(through.state()) == json.dumps(other.state())


def test_the_state_of_another_version_is_left_out_with_one_line(caplog):
    watch = Watch()
    watch.update(diagnose(np.eye(8)[None, :, :2], [1, 1], ["a", "b"]))
    new = Watch()
    new.restore(watch.state() | {"form": 1})
    assert new.state() == Watch().state()
    assert [r.message.partition(":")[0] for r in caplog.records] == [
        "the checkpoint is from another version of gdpo"
    ]


@pytest.mark.slow
def test_the_margin_of_a_share_is_that_of_a_bootstrap_over_the_groups():
    random = default_rng(5)
    rewards = random.standard_normal((100, 8, 3)) * [2, 1, 0.5]
    whole = diagnosed(rewards).influence
    drawn = [diagnosed(rewards[random.integers(0, 100, 100)]) for _ in range(200)]
    stds = np.std([diagnosis.influence.shares for diagnosis in drawn], axis=0)
    assert_allclose(whole.margins, 1.96 * stds, rtol=0.2)


def test_what_was_noticed_is_measured_from_the_next_step_on_and_dropped_if_the_reward_goes():
    history = FindingHistory()
    for place, diagnosis in enumerate(steps(4, 32, samples=64), start=1):
        history.add(diagnosis, number=10 * place)
    (held,) = history.held()
    assert held.finding.evidence["from_step"] == 30
    gone = steps(2, 32, samples=64) + steps(4, 32, stds=[1, 1])
    assert not history_of(gone).held()


def test_observed_ranges_are_widened_and_declared_ones_are_kept():
    history, random = FindingHistory(), default_rng(0)
    for low, bounds in ((0, {}), (5, {}), (5, {"low": {"b": -9}, "high": {"b": 9}}), (5, {})):
        rewards = low + random.random((16, 8, 2))
        history.add(of_two(rewards, **bounds))
    ranges = history.state()["ranges"]
    assert ranges["a"][0] < 1 < 5 < ranges["a"][1]
    assert ranges["b"] == [-9, 9, True]
    assert FindingHistory().learned() == ()


def about(kind, *rewards, severity=Severity.WARNING):
    return Finding(kind, severity, rewards, "", "", {})


@pytest.mark.parametrize(
    ("kind", "rewards", "values", "expected"),
    [
        (Kind.NO_SIGNAL, (), 0.5, True),
        (Kind.NO_SIGNAL, (), None, False),
        (Kind.IGNORED, ("gone",), None, False),
        (Kind.IGNORED, ("a",), None, False),
        (Kind.CONSTANT, ("a",), 0.5, True),
        (Kind.CONSTANT, ("a",), None, False),
    ],
)
def test_a_finding_holds_as_long_as_the_last_groups_show_it(kind, rewards, values, expected):
    batch = random_of(64)
    batch = batch if values is None else np.full_like(batch, values)
    window = of_two(batch).influence
    assert holds(about(kind, *rewards), window, Thresholds()) == expected


def behaviours(random, size):
    """What a reward may do for a while."""
    half = random.random(size) < 0.5
    return {
        "awake": half * 1.0,
        "asleep": np.zeros(size),
        "learned": np.ones(size),
        "rare": (random.random(size) < 0.02) * 1.0,
        "sparse": half * (random.random((size[0], 1)) < 0.08),
        "small": 0.02 * random.random(size),
        "less": 0.2 * random.random(size),
        "missing": np.full(size, np.nan),
        "partly missing": np.where(random.random((size[0], 1)) < 0.3, half, np.nan),
    }


CONDITIONS = {
    Kind.NO_SIGNAL: lambda e, t: e["zero_advantage_groups"] >= t.zero_advantage,
    Kind.NEVER_APPLIES: lambda e, t: e["missing"] == 1,
    Kind.REVERSED: lambda e, t: e["influence_share"] < -t.reversed,
    Kind.IGNORED: lambda e, t: e["influence_share"] < t.ignored * e["weight_share"],
    Kind.OUT_OF_REACH: lambda e, t: (
        e["zero_variance_groups"] >= t.zero_variance and e["saturation"] <= t.bottom
    ),
    Kind.CONSTANT: lambda e, t: e["zero_variance_groups"] >= t.zero_variance,
    Kind.SATURATED: lambda e, t: (
        e["zero_variance_groups"] >= t.zero_variance and e["saturation"] >= t.top
    ),
    Kind.OPPOSED: lambda e, t: abs(e["correlation"]) >= t.opposed,
    Kind.REDUNDANT: lambda e, t: abs(e["correlation"]) >= t.redundant,
    Kind.MOSTLY_MISSING: lambda e, t: t.missing <= e["missing"] < 1,
}


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 40))]
)
def test_the_numbers_of_each_finding_meet_its_condition_whatever_a_run_does(seed):
    random, watch, diagnoses, printed = default_rng(seed), Watch(), [], []
    size = (int(random.choice([8, 16, 32, 64])), 8)
    while sum(diagnosis.prompts for diagnosis in diagnoses) < 700:
        names = [random.choice([*behaviours(random, size)]) for _ in range(2)]
        for _ in range(int(random.integers(1, 300 // size[0]))):
            columns = [behaviours(random, size)[name] for name in ("awake", *names)]
            step = diagnose(
                np.stack(columns, axis=-1),
                None,
                ["a", "b", "c"],
                estimator=("grpo", "gdpo")[seed % 2],
                low=[0] * 3,
                high=[1] * 3,
            )
            diagnoses.append(step)
            printed += [*watch.update(step).findings, *watch.due]
    now = [held.finding for held in at_the_end(diagnoses)]
    assert now or seed > 2
    for finding in (*printed, *now):
        assert CONDITIONS[finding.kind](finding.evidence, Thresholds()), finding.message


@pytest.mark.parametrize(
    ("kind", "severity", "last", "apart"),
    [
        (Kind.OUT_OF_REACH, Severity.WARNING, 4, True),
        (Kind.OUT_OF_REACH, Severity.WARNING, 8, False),
        (Kind.OUT_OF_REACH, Severity.NOTE, 4, False),
        (Kind.IGNORED, Severity.WARNING, 4, False),
    ],
)
def test_a_warning_of_another_sort_that_has_ended_is_apart(kind, severity, last, apart):
    part = HeldFinding(about(kind, "a", severity=severity), ((1, last),), 8)
    assert _is_apart(part, about(Kind.REVERSED, "a"), 8) == apart
