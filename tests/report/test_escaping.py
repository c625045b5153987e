"""Text from files, rewards and models is text in every place of a page."""

from dataclasses import replace

import numpy as np
import pytest
from tests.report.runs import experiment_of, record, trained
from tests.rollouts.readers import written

from gdpo.analysis import analyze
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.report import write_report
from gdpo.report import html, write_rollouts_report
from gdpo.rollouts.readers import read_rollout_files

EVIL = """<evil a="evil" b='evil'></script><script>evil</script>{{ 7*7 }}"""
IN_A_PATH = """<evil a="evil" b='evil'>{{ 7*7 }}"""


def unescaped(page):
    """What of it is markup; inside of the data's element, what could end that."""
    before, rest = page.split('<script type="application/json" id="data">')
    data, script, after = rest.partition("</script>")
    assert "\\u003cevil" in data, "the rollouts are there"
    outside = before + after
    found = [text for text in ("<evil", '"evil"', "'evil'", "<script>evil") if text in outside]
    found += [text for text in "<>&" if text in data]
    assert script
    assert "{{ 7*7 }}" in outside
    assert "49</" not in outside
    return found


NAMES = (f"{EVIL}1", f"{EVIL}2")
REWARDS = (Measured(NAMES[0], 0.0, 1.0, 1.0), Measured(NAMES[1], -3.0, 3.0, 1.0))


def of_a_comparison(folder):
    """Names, texts, why a run failed, and why an estimator cannot be called."""
    (folder / IN_A_PATH).mkdir()
    runs = [
        trained(folder / IN_A_PATH, label, seed, names=NAMES, texts=(EVIL, EVIL))
        for label in ("gdpo", "grpo", EVIL)
        for seed in (1, 2)
    ]
    (runs[2].path / "recipe.yaml").write_text(f"advantage_options: {{{EVIL}")
    runs[0] = replace(runs[0], state="failed", why=EVIL)
    runs[1] = replace(runs[1], path=runs[1].path.rename(folder / IN_A_PATH / IN_A_PATH))
    experiment = experiment_of(folder, runs, rewards=REWARDS, name=EVIL)
    experiment = replace(experiment, unlike=frozenset({(EVIL, NAMES[0])}))
    return analyse(experiment)


def of_a_run(folder):
    run = trained(folder, EVIL, 1, names=NAMES, texts=(EVIL, EVIL))
    stuck = np.random.default_rng(0).random((8, 4, 2)) * [0, 1]
    for step in range(1, 9):
        record(run.path, EVIL, step, stuck, names=NAMES, texts=(EVIL, EVIL))
    return analyse(experiment_of(folder, [run], rewards=REWARDS, name=EVIL))


def runs_page(folder, comparison):
    write_report(comparison, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def rollouts_page(folder):
    """Names of runs, rewards and files, texts, and a file that cannot be read."""
    rng = np.random.default_rng(0)
    for run in ("a", "b"):
        records = [
            {"step": step, "prompt": f"{EVIL} {p}", "completion": EVIL, "num_tokens": 3 + s}
            | {f"{EVIL}{k}": float(rng.random() * 100**k) for k in range(2)}
            for step in range(8)
            for p in range(8)
            for s in range(4)
        ]
        written.lines(folder / "dump" / f"{IN_A_PATH}{run}" / "a.jsonl", records)
    (folder / "dump" / f"{IN_A_PATH}a" / f"{IN_A_PATH}.parquet").write_bytes(b"none")
    reading = read_rollout_files(folder / "dump", rewards=[f"{EVIL}{k}" for k in range(2)])
    analysis = analyze(reading, replayed=["grpo", "gdpo", f"{__name__}:failing"], sampled=True)
    write_rollouts_report(analysis, folder / "page.html")
    return (folder / "page.html").read_text("utf-8")


def failing(rewards, weights):
    raise ValueError(EVIL)


PAGES = {
    "a run": (lambda folder: runs_page(folder, of_a_run(folder)), 30),
    "a comparison": (lambda folder: runs_page(folder, of_a_comparison(folder)), 33),
    "rollouts": (rollouts_page, 30),
}


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_that_is_not_ours_is_markup(tmp_path, kind):
    make, places = PAGES[kind]
    page = make(tmp_path)
    assert unescaped(page) == []
    outside = page.split('<script type="application/json"')[0]
    assert outside.count("{{ 7*7 }}") >= places, "wherever such a text may come to"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
def test_without_escaping_this_would_be_seen(tmp_path, monkeypatch, kind):
    html._environment.cache_clear()
    for package in ("gdpo.report", "gdpo.lab.report"):
        monkeypatch.setattr(html._environment(package), "autoescape", False)
    page = PAGES[kind][0](tmp_path)
    html._environment.cache_clear()
    assert {"<evil", '"evil"', "'evil'", "<script>evil"} <= set(unescaped(page))
