"""A parting of a trained and a watch-only reward: in the trainers' log, `gdpo analyze` and reports.

`tests/training` tests that `watch: true` in a recipe is weight 0, also in the rollout record.
"""

import json
import logging
import re

import numpy as np
import pytest
from tests.report.runs import experiment_of, record

from gdpo.diagnostics import Watch
from gdpo.integrations.rows import Groups, compute, make_settings
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured, Run
from gdpo.lab.report import write_report

NAMES = ("brevity", "correctness")
STEPS, GROUPS, SAMPLES, LAST_GOOD = 24, 8, 4, 12
PARTED = "`brevity` rises while the watched `correctness` falls"
REMEDY = "gate `brevity` on `correctness`"


def batches(*, fall=3.0):
    """Yield the rewards of each step. From step 13 on, responses are briefer and worse."""
    random = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        noise = random.standard_normal((GROUPS, SAMPLES))
        late = float(step > LAST_GOOD)
        wrong = random.standard_normal(noise.shape) - noise - fall * late
        yield np.stack([noise + 3.0 * late, wrong], axis=-1)


def recorded(folder, *, weights=(1.0, 0.0), **kwargs):
    """Write the rollouts of a run with these weights."""
    path, means = folder / "run-0", []
    for step, rewards in enumerate(batches(**kwargs), 1):
        record(path, "gdpo", step, rewards, names=NAMES, weights=weights)
        means.append(rewards.mean(axis=(0, 1)))
    by_name = dict(zip(NAMES, np.array(means).T, strict=True))
    return Run("gdpo", 1, path, "finished", "", by_name)


def text_of(page):
    """Return the text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]*>", "", page.read_text()).split())


def found_by_analyze(gdpo_says, run):
    _, out, _ = gdpo_says("analyze", run.path, "--output", "json")
    return [f for f in json.loads(out)["runs"][0]["findings"] if f["kind"] == "parted"]


def test_analyze_reports_the_parting_with_its_step_and_what_to_do(gdpo_says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = recorded(tmp_path)
    (finding,) = found_by_analyze(gdpo_says, run)
    assert (finding["severity"], finding["rewards"]) == ("warning", list(NAMES))
    assert "from about step 13 on" in finding["message"]
    assert REMEDY in finding["remedy"]
    code, out, _ = gdpo_says(
        "analyze", run.path, "--fail-on", "warning", "--output", tmp_path / "page.html"
    )
    printed = " ".join(out.split())
    assert code == 1
    assert PARTED in printed
    assert "step 13" in printed
    assert REMEDY in printed
    assert PARTED in text_of(tmp_path / "page.html")


@pytest.mark.parametrize("changed", [{"weights": (1.0, 1.0)}, {"fall": 0.0}], ids=str)
def test_analyze_reports_no_parting_without_a_watched_reward_that_falls(
    gdpo_says, tmp_path, changed
):
    assert not found_by_analyze(gdpo_says, recorded(tmp_path, **changed))


def test_the_report_of_a_run_has_the_parting_with_its_step_and_what_to_do(tmp_path):
    run = recorded(tmp_path)
    rewards = (Measured("brevity", -5.0, 8.0, 1.0), Measured("correctness", -9.0, 6.0, 0.0))
    page = tmp_path / "report.html"
    write_report(analyse(experiment_of(tmp_path, [run], rewards=rewards)), page)
    assert f"{PARTED}: from about step 13 on".replace("`", "") in text_of(page)
    assert REMEDY.replace("`", "") in text_of(page)


def test_a_trainer_logs_the_parting_once(caplog):
    settings = make_settings("gdpo", NAMES, [1.0, 0.0], None)
    rows = np.arange(GROUPS * SAMPLES)
    tokens = np.ones((GROUPS, SAMPLES), dtype=np.int64)
    watch, told = Watch(), []
    with caplog.at_level(logging.WARNING, logger="gdpo"):
        for rewards in batches():
            groups = Groups(rewards, tokens, rows // SAMPLES, rows % SAMPLES)
            compute(groups, settings).metrics(watch)
            told.append(sum(PARTED in message for message in caplog.messages))
    assert told[LAST_GOOD - 1] == 0
    assert told[-1] == 1
    (message,) = [message for message in caplog.messages if PARTED in message]
    # The window after the parting has at least 10 steps, so the first report can be early.
    assert re.search(r"from about step 1[123] on", message)
    assert "Gate `brevity` on `correctness`" in message
