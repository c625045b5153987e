"""Reports show requested influence shares beside the shares that the rewards had."""

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from tests.report.runs import experiment_of, trained, unrecorded

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.report import write_report
from gdpo.lab.report._run_contents import read_contents
from gdpo.lab.report.requested import cells, note, requested_summary
from gdpo.lab.report.trained import TrainedRun, analyze_trained

STEPS = 12
REQUEST = {"format": 0.7, "correct": 0.3}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Runs of three seeds."""
    folder = tmp_path_factory.mktemp("requested") / "runs"
    return [trained(folder, "gdpo", seed, steps=STEPS) for seed in (1, 2, 3)]


@pytest.fixture
def run(three):
    return three[0]


def governed(run, *, statuses=None):
    """Return a run with the metrics of set-points. The default statuses are governed (0)."""
    curve = np.zeros(run.steps) if statuses is None else np.array(statuses, dtype=float)
    weights = {name: np.linspace(1.0, 1.0 + share, run.steps) for name, share in REQUEST.items()}
    return replace(run, requested=REQUEST, weights=weights, statuses=dict.fromkeys(REQUEST, curve))


def contents_of(folder, runs, **kwargs):
    return read_contents(analyse(experiment_of(folder, runs, **kwargs), draws=50))


def alone(folder, run, steps):
    """Return the influence of a run over some of its steps, read without the report."""
    analysis = analyze_trained([TrainedRun("0", run.path / "rollouts", "gdpo")], {})
    return analysis.runs["0"].influence(set(steps))


def shown(shares, *, width=300):
    console = Console(width=width, record=True, file=StringIO())
    console.print(requested_summary(shares))
    return console.export_text()


def test_the_realized_share_is_the_influence_over_all_governed_steps(tmp_path, run):
    shares = contents_of(tmp_path, [governed(run)]).requested
    whole = alone(tmp_path, run, range(1, STEPS + 1))
    for share, place in zip(shares, map(whole.names.index, REQUEST), strict=True):
        assert (share.reward, share.requested) == list(REQUEST.items())[shares.index(share)]
        assert share.realized.value == pytest.approx(whole.shares[place])
        assert share.realized.high - share.realized.value == pytest.approx(whole.margins[place])
        assert share.weight == pytest.approx(1.0 + share.requested)
        assert (share.counted, share.steps, share.status) == (STEPS, STEPS, "governed")


def test_steps_in_which_a_reward_is_released_do_not_count(tmp_path, run):
    kept = governed(run, statuses=[0] * 5 + [3] * 7)
    share, _ = contents_of(tmp_path, [kept]).requested
    early = alone(tmp_path, run, range(1, 6))
    assert share.realized.value == pytest.approx(early.shares[early.names.index("format")])
    assert (share.counted, share.status) == (5, "learned and released")


def test_steps_count_whether_the_request_was_met_or_not(tmp_path, run):
    kept = governed(run, statuses=[5] * 4 + [0] * 4 + [6] * 4)
    share, _ = contents_of(tmp_path, [kept]).requested
    whole = alone(tmp_path, run, range(1, STEPS + 1))
    assert share.realized.value == pytest.approx(whole.shares[whole.names.index("format")])
    assert (share.counted, share.status) == (STEPS, "missed")


def test_runs_are_pooled_and_the_farthest_is_named(tmp_path, three):
    share, _ = contents_of(tmp_path, [governed(run) for run in three]).requested
    each = [alone(tmp_path, run, range(1, STEPS + 1)) for run in three]
    own = [window.shares[window.names.index("format")] for window in each]
    assert share.farthest == pytest.approx(max(own, key=lambda value: abs(value - 0.7)))
    assert min(own) < share.realized.value < max(own)
    assert share.steps == 3 * STEPS


def test_runs_that_end_differently_are_counted(tmp_path, three):
    ends = [None, None, [0] * 11 + [3]]
    kept = [governed(run, statuses=end) for run, end in zip(three, ends, strict=True)]
    share, _ = contents_of(tmp_path, kept).requested
    assert share.status == "governed (2), learned and released (1)"


def test_a_share_that_is_not_attainable_names_the_correlation(tmp_path, run):
    share, _ = contents_of(tmp_path, [governed(run, statuses=[4] * STEPS)]).requested
    assert share.status.startswith("not attainable: correlation ")
    assert share.status.endswith("with correct")
    assert np.isnan(share.realized.value)


def test_a_status_that_is_averaged_over_several_steps_is_not_shown(tmp_path, run):
    share, _ = contents_of(tmp_path, [governed(run, statuses=[0] * 11 + [1.5])]).requested
    assert share.status == "–"


def test_a_page_does_not_show_a_weight_that_changes_as_the_weight_of_the_recipe(tmp_path, run):
    comparison = analyse(experiment_of(tmp_path, [governed(run)]), draws=50)
    write_report(comparison, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").count("weight changing") == len(REQUEST)


def test_the_explanation_defines_the_statuses_that_occur(tmp_path, run):
    (released, _) = contents_of(tmp_path, [governed(run, statuses=[0] * 5 + [3] * 7)]).requested
    assert "Learned and released: " in note([released])
    assert "Does not vary: " not in note([released])
    assert "Settling: " not in note([replace(released, status="settling")])  # text decides nothing
    assert note([released]) in " ".join(shown([released]).split())


def test_nothing_is_truncated_in_a_terminal_of_80_columns(tmp_path, run):
    found = contents_of(tmp_path, [governed(run)]).requested
    label = "gdpo influence={correctness: 0.7, brevity: 0.3}"
    text = shown([replace(share, label=label, reward="correctness") for share in found], width=80)
    assert "…" not in text
    assert label in text
    assert "correctness " in text
    assert "requested" in text


def test_without_rollouts_the_request_and_the_weight_remain(tmp_path):
    run = governed(unrecorded("gdpo", 1, tmp_path))
    share, _ = contents_of(tmp_path, [run]).requested
    assert (share.requested, share.weight, share.steps) == (0.7, 1.7, 0)
    assert "0.700" in shown([share])
    assert "nan" not in shown([share])


def test_runs_with_fixed_weights_have_no_table_and_no_chart(tmp_path, run):
    comparison = analyse(experiment_of(tmp_path, [run]), draws=50)
    contents = read_contents(comparison)
    assert (contents.requested, contents.weights) == ([], [])
    assert write_report(comparison, tmp_path / "page.html") == []
    assert 'id="weights"' not in (tmp_path / "page.html").read_text("utf-8")


def test_the_page_has_the_table_and_the_weights(tmp_path, run):
    runs = [trained(tmp_path / "runs", "grpo", 1, steps=STEPS), governed(run)]
    comparison = analyse(experiment_of(tmp_path, runs), draws=50)
    shares = write_report(comparison, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Requested influence</h2>" in page
    assert page.count("weight varied") == len(REQUEST)  # GRPO has fixed weights
    assert all(cells(share)[1] in page for share in shares)


def test_hostile_names_are_made_visible(tmp_path):
    name = "for\x1b[31mmat"
    rewards = (Measured(name, 0.0, 1.0, 1.0),)
    run = unrecorded("gdpo", 1, tmp_path, rewards=rewards)
    statuses = {name: np.zeros(run.steps)}
    run = replace(run, requested={name: 1.0}, statuses=statuses)
    (share,) = contents_of(tmp_path, [run], rewards=rewards).requested
    assert "\x1b" not in shown([share])
