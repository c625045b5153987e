"""Runs whose truth is known get the right verdict, and the rule of do_i_need_this.md is right."""

import json
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.analysis.planted import PLANTED, QUESTIONS, Run, analyzed, write_run

from gdpo.analysis.verdict import Action

PAGE = Path(__file__).parents[2] / "docs/explanation/do_i_need_this.md"

ANSWERS = {"train": "Yes", "change": "Not yet", "nothing": "No", "unknown": "Not known"}


@cache
def analysis_of(name):
    """Half of a run has the same truth, and is faster."""
    return analyzed(replace(PLANTED[name], steps=100))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_run_has_its_true_influence_and_the_right_verdict(name):
    planted, analysis = PLANTED[name], analysis_of(name)
    (run,) = analysis.runs
    shares = {reward.name: reward.influence_share for reward in run.rewards()}
    for reward, (low, high) in planted.influence.items():
        assert low - 1e-9 <= shares[reward] <= high + 1e-9
    verdict = analysis.verdict(run)
    assert (verdict.action, verdict.kind, list(verdict.rewards)) == planted.calls_for


def rule():
    """The command of the page, and for each action the start of its verdict and the answer."""
    page = PAGE.read_text(encoding="utf-8")
    command = re.search(r"^gdpo analyze .*$", page, re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|.]+)\.[^|]* \|$", page, re.MULTILINE)
    return shlex.split(command)[1:], {action: told for action, *told in rows}


def test_the_page_answers_for_each_action():
    answers = {action: answer for action, (_, answer) in rule()[1].items()}
    assert ANSWERS.items() <= answers.items()
    assert answers.keys() <= set(Action)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_rule_of_the_page_gives_the_right_answer(name, tmp_path, monkeypatch, capsys):
    from gdpo.cli import main

    monkeypatch.chdir(tmp_path)
    run, (arguments, answers) = QUESTIONS[name], rule()
    write_run(Path(arguments[1]), run)
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--output", "json"])
    assert not leaving.value.code
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    verdict = found["verdict"]
    assert (verdict["action"], verdict["kind"], verdict["rewards"]) == run.calls_for
    start, answer = answers[verdict["action"]]
    assert answer == ("No" if name.startswith("healthy") else "Yes")
    assert answer == "Yes" or verdict["sentence"].startswith(start)


def test_the_page_quotes_the_verdict_of_a_run_with_too_few_groups():
    few = Run(QUESTIONS["healthy: two rewards of 0 or 1"].draw, (), {}, steps=2, size=(8, 8))
    verdict = (analysis := analyzed(few)).verdict(analysis.runs[0])
    assert verdict.action == "unknown"
    starts = {action: start.removesuffix(" …") for action, (start, _) in rule()[1].items()}
    said = [action for action, start in starts.items() if verdict.sentence.startswith(start)]
    assert said == ["unknown"]
