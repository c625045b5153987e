"""docs/reference/diagnostics.md agrees with the code."""

import re

from tests.environments import ROOT

from gdpo.diagnostics import Thresholds
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.findings import _FEW_GROUPS, DOMINANT
from gdpo.diagnostics.looks import _LEAST_VARYING, ERROR, LEAST_GROUPS
from gdpo.diagnostics.readings import _LIVE, _PENALTY, _SPREAD

PAGE = ROOT / "docs" / "reference" / "diagnostics.md"


def test_every_kind_is_in_the_table_worst_first():
    table = PAGE.read_text("utf-8").partition("| kind |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`(?: \(note\))? \| .* \|$", table, re.M) == list(Kind)


def test_the_thresholds_of_the_page_are_the_defaults():
    text = PAGE.read_text("utf-8")
    t = Thresholds()
    for words in (
        f"{t.zero_advantage:.0%} of the groups have zero advantage",
        f"with {t.reversed:.0%} of the influence",
        f"the **last {t.window} groups**",
        f"need {LEAST_GROUPS} groups, and the reward must vary in {_LEAST_VARYING} of",
        f"varies in {1 - t.zero_variance:.0%} of its groups could look like this",
        f"{ERROR:.1%}",
        f"constant in {t.zero_variance:.0%} of its groups, in the lowest {t.bottom:.0%}",
        f"in the top {1 - t.top:.0%}",
        f"in {t.below_resolution:.0%} of its groups it differs by no more than",
        f"correlation of −{t.opposed:g} or less",
        f"correlation of {t.redundant:g} or more",
        f"below {t.least_share:.0%} of the influence",
        f"missing from {t.missing:.0%} of the rollouts",
        f"fewer than {_FEW_GROUPS} groups",
    ):
        assert words.replace("%", " %") in text, words
    assert (t.ignored, t.falls, t.nudge, DOMINANT) == (0.25, 0.05, 0.1, 1.5)
    for words in (
        "a quarter of",
        "a twentieth of its range",
        "a tenth of the largest",
        "1.5 times",
    ):
        assert words in text, words
    for number in (_LIVE, _SPREAD):
        assert f"{number:.0%}".replace("%", " %") in text.partition("A reward is graded")[2]
    assert f"and at most {_PENALTY} for a graded penalty" in text
