"""Runs whose truth is known get the right verdict, and the rule of do_i_need_this.md is right."""

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.planted import PLANTED, QUESTIONS, Run, analyzed, write_run
from tests.environments import ROOT

from gdpo.analysis.verdict import Action

PAGE = ROOT / "docs/explanation/do_i_need_this.md"

ANSWERS = {
    "check": "Not yet",
    "train": "Yes",
    "change": "Not yet",
    "nothing": "No",
    "unknown": "Not known",
}


@cache
def analysis_of(name):
    """Half of a run has the same truth, and is faster."""
    return analyzed(replace(PLANTED[name], steps=100))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_run_has_its_true_influence_and_the_right_verdict(name):
    planted, analysis = PLANTED[name], analysis_of(name)
    (run,) = analysis.runs
    shares = {reward.name: reward.influence_share for reward in run.rewards}
    for reward, (low, high) in planted.influence.items():
        assert low - 1e-9 <= shares[reward] <= high + 1e-9
    verdict = analysis.verdict(run)
    assert (verdict.action, verdict.kind, list(verdict.rewards)) == planted.calls_for


def rule():
    """The command of the page, and for each action the pattern of its verdict and the answer."""
    page = PAGE.read_text("utf-8")
    command = re.search(r"^gdpo analyze .*$", page, re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|.]+)\.[^|]* \|$", page, re.MULTILINE)
    any_words = {"…": ".*", "NAME": "[^`]+"}
    told = {
        action: (re.sub("…|NAME", lambda found: any_words[found[0]], verdict), answer)
        for action, verdict, answer in rows
    }
    return shlex.split(command)[1:], told


def test_the_page_answers_for_each_action():
    answers = {action: answer for action, (_, answer) in rule()[1].items()}
    assert ANSWERS.items() <= answers.items()
    assert answers.keys() <= set(Action)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_rule_of_the_page_gives_the_right_answer(name, tmp_path, monkeypatch, gdpo_says):
    monkeypatch.chdir(tmp_path)
    run, (arguments, answers) = QUESTIONS[name], rule()
    write_run(Path(arguments[1]), run)
    code, out, _ = gdpo_says(*arguments, "--output", "json")
    assert code == 0
    (found,) = json.loads(out)["runs"]
    verdict = found["verdict"]
    assert (verdict["action"], verdict["kind"], verdict["rewards"]) == run.calls_for
    pattern, answer = answers[verdict["action"]]
    assert answer == ("No" if name.startswith("healthy") else "Yes")
    assert re.match(pattern, verdict["sentence"])


def _twice(random, step, size):
    style = (random.random(size) < 0.5).astype(float)
    return {"style": style, "form": np.where(random.random(size) < 0.01, 1 - style, style)}


def test_the_page_quotes_the_verdicts_that_no_question_has_and_has_a_row_for_a_change():
    healthy = QUESTIONS["healthy: two rewards of 0 or 1"].draw
    found = {
        "unknown": analyzed(Run(healthy, steps=2, size=(8, 8))),
        "change": analyzed(Run(_twice, steps=32, size=(8, 8))),
        "check": analysis_of(next(iter(PLANTED))),
    }
    for action, analysis in found.items():
        verdict = analysis.verdict(analysis.runs[0])
        assert verdict.action == action
        fit = {known for known, (told, _) in rule()[1].items() if re.match(told, verdict.sentence)}
        assert fit == ({action} if action != "change" else set())
