"""What the README shows is what comes out."""

import re
from pathlib import Path

import numpy as np

import gdpo

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_a_citation_names_the_current_version():
    assert f"\nversion: {gdpo.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_the_formulas_are_those_of_grpo_and_gdpo():
    (block,) = re.findall(r"```diff\n( def .*?)```", README.read_text("utf-8"), re.DOTALL)
    rewards = np.random.default_rng(0).random((5, 4, 3))
    for mark, estimator in (("-", gdpo.grpo), ("+", gdpo.gdpo)):
        names = {}
        exec("\n".join(line[1:] for line in block.splitlines() if line[0] in f" {mark}"), names)
        expected = estimator(rewards, [1.0, 2.0, 0.5])
        np.testing.assert_allclose(names["advantages"](rewards, np.array([1, 2, 0.5])), expected)


def test_the_readme_has_at_most_900_words():
    assert len(README.read_text("utf-8").split()) <= 900
