"""An estimator looks the same in every picture."""

import re
from itertools import pairwise, permutations

import pytest

from gdpo.advantages import ESTIMATORS
from gdpo.report.colours import DARK, LIGHT, PLACES, css, style_at, styles


def looks(found):
    return [(each.light, each.dashes) for each in found.values()]


def test_every_estimator_has_a_look_of_its_own_that_does_not_depend_on_the_company():
    together = styles(list(ESTIMATORS))
    assert len(set(looks(together))) == len(ESTIMATORS)
    assert together == {name: styles([name])[name] for name in ESTIMATORS}


def test_no_estimator_but_grpo_and_gdpo_has_their_colours():
    others = [each.light for name, each in styles(list(ESTIMATORS)).items()
              if name not in ("grpo", "gdpo")]  # fmt: skip
    assert not {each.light for each in styles(["gdpo", "grpo"]).values()} & {*others}
    (own,) = styles(["my_module:my_estimator"]).values()
    assert own.light not in LIGHT[:2]


def test_labels_of_users_differ_from_each_other_and_from_every_estimator():
    labels = ["gdpo a=1", "gdpo a=0.5", "my:estimator", "x", "\ud800", ""]
    found = styles([*ESTIMATORS, *labels])
    assert len(set(looks(found))) == len(ESTIMATORS) + len(labels) <= PLACES
    few = styles(["grpo", "gdpo", *labels[:4]])
    assert len({each.light for each in few.values()}) == 6, "no colour twice while there are others"


def test_the_order_of_the_labels_has_no_effect():
    labels = ["gdpo", "gdpo a=1", "gdpo a=0.5", "my:estimator"]
    first, *others = [styles(order) for order in permutations(labels)]
    assert all(other == first for other in others)


def test_more_labels_than_styles_are_drawn_all_the_same():
    assert len(styles([f"label {k}" for k in range(100)])) == 100


def test_the_style_sheet_has_a_class_for_each_style_in_both_themes():
    text = css()
    for place in range(PLACES):
        assert len(re.findall(rf"^\.a{place} ", text, re.MULTILINE)) == 1
    for theme in (LIGHT, DARK):
        assert all(colour in text for colour in theme)
    assert text.index("@media print") > text.index("@media (prefers"), "paper is never dark"


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("theme", "paper"), [(LIGHT, "#ffffff"), (DARK, "#15171b")])
def test_every_colour_stands_out_from_its_background(theme, paper):
    for colour in theme:
        low, high = sorted([luminance(colour), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) >= 3.0, "as WCAG wants it of graphics"


def test_within_a_colour_no_dash_pattern_comes_twice():
    every = [style_at(place) for place in range(PLACES)]
    for hue in LIGHT:
        patterns = sorted(each.dashes for each in every if each.light == hue)
        assert all(a != b for a, b in pairwise(patterns))
