from dataclasses import replace

import pytest
from tests.report.browser import chromium, find_chromium
from tests.report.hostile import CHATS, TEXTS
from tests.report.runs import experiment_of, trained, two_estimators

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.report import write_report


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """The results of two estimators with two seeds, and the page about them."""
    folder = tmp_path_factory.mktemp("compared")
    comparison = analyse(two_estimators(folder / "runs"))
    write_report(comparison, folder / "report.html")
    return comparison, folder / "report.html"


@pytest.fixture(scope="session")
def hostile_rollouts(tmp_path_factory):
    """A page about a run for each hostile text, which is a prompt and a completion."""
    folder = tmp_path_factory.mktemp("hostile_rollouts")
    runs = [
        trained(folder, "gdpo", seed, steps=1, texts=(str(text)[:5000], text))
        for seed, text in enumerate({**TEXTS, **CHATS}.values())
    ]
    write_report(analyse(experiment_of(folder, runs)), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def hostile_names(tmp_path_factory):
    """The results of a task, a label and rewards with hostile names, and the page about them."""
    folder = tmp_path_factory.mktemp("hostile_names")
    hostile = "W" * 400
    hostile += "".join(text[:400] for kind, text in TEXTS.items() if kind != "surrogates")
    rewards = (Measured(hostile, 0.0, 1.0, 1.0), Measured(f"{hostile}2", -3.0, 3.0, 1.0))
    run = trained(folder, "grpo", 1, steps=3, names=tuple(r.name for r in rewards))
    broken = replace(run, label=hostile, state="failed", why=hostile)
    comparison = analyse(experiment_of(folder, [run, broken], rewards=rewards, name=hostile))
    write_report(comparison, folder / "report.html")
    return comparison, folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: install one (Debian: chromium), or name it with GDPO_CHROMIUM")
    with chromium(program) as page:
        yield page
