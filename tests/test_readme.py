"""What the README shows is what comes out."""

import re
import sys

import numpy as np
from benchmarks import release
from tests.environments import ROOT

import gdpo

README = (ROOT / "README.md").read_text("utf-8")


def test_a_citation_names_the_current_version():
    assert f"\nversion: {gdpo.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_formulas_are_those_of_grpo_and_gdpo():
    (block,) = re.findall(r"```diff\n( def .*?)```", README, re.DOTALL)
    rewards = np.random.default_rng(0).random((5, 4, 3))
    for mark, estimator in (("-", gdpo.grpo), ("+", gdpo.gdpo)):
        names = {}
        exec("\n".join(line[1:] for line in block.splitlines() if line[0] in f" {mark}"), names)
        expected = estimator(rewards, [1.0, 2.0, 0.5])
        np.testing.assert_allclose(names["advantages"](rewards, np.array([1, 2, 0.5])), expected)


def test_the_readme_has_at_most_900_words():
    words = [word for word in README.split() if word != "|"]
    assert len(words) <= 900


def test_every_result_of_the_table_has_its_setting_command_and_commit():
    for result in release.RESULTS:
        assert {"setting", "command", "commit"} < result.keys()


def test_the_row_of_this_version_is_what_the_command_prints(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release"])
    release.main()
    head, rule, row = capsys.readouterr().out.splitlines()
    here = README.partition(f"{head}\n{rule}\n")[2].partition("\n\n")[0]
    shown, now = (line.strip("| ").split(" | ") for line in (here.splitlines()[-1], row))
    tokens, of_code = (int(cells.pop().replace(",", "")) for cells in (shown, now))
    assert shown == now
    assert abs(tokens / of_code - 1) < 0.01  # counted at the last change of the row
