"""How a diagnosis reads in a terminal."""

import numpy as np

from gdpo.diagnostics import diagnose

HEADINGS = [
    *("reward", "weight", "mean", "std", "zero-variance"),
    *("weight share", "influence share"),
]


def correctness_and_style(style=1.0):
    random = np.random.default_rng(0)
    scores = random.integers(-3, 4, (128, 8)), style * random.random((128, 8))
    return np.stack([score.astype(float) for score in scores], axis=-1)


def test_the_table_puts_the_share_of_the_weights_next_to_that_of_the_influence():
    text = str(diagnose(correctness_and_style(), None, ["correctness", "style"], estimator="grpo"))
    head, headings, first, second, *_ = text.splitlines()
    assert head == "grpo on 128 x 8 rollouts (prompts x samples)"
    assert [part.strip() for part in headings.split("  ") if part.strip()] == HEADINGS
    assert first.split()[0] == "correctness"
    assert second.split()[-6:] == ["50", "%", "8", "%", "±", "6"]
    assert len(headings) == len(first) == len(second)
    columns = [headings.index(heading) + len(heading) for heading in HEADINGS[1:]]
    assert all(line[column - 1] != " " for line in (first, second) for column in columns)


def test_a_finding_is_followed_by_its_remedy():
    batch = correctness_and_style(0.1)
    diagnosis = diagnose(batch, None, ["correctness", "style"], estimator="grpo")
    lines = str(diagnosis).splitlines()
    (finding,) = diagnosis.findings
    text = " ".join(line.strip() for line in lines[6:])
    assert text == f"! {finding.message} → {finding.remedy}"


def test_no_findings_are_reported_as_such():
    healthy = diagnose(correctness_and_style(), None, ["correctness", "style"])
    assert "no findings" in str(healthy).splitlines()[-1]


def test_notes_are_marked_differently_from_warnings():
    rewards = correctness_and_style()
    rewards[:, :, 1] = 1.0
    text = str(diagnose(rewards, None, ["correctness", "style"], low=[-3, 0], high=[3, 1]))
    assert "\n- `style` is constant" in text
    assert "!" not in text


def test_lines_are_no_longer_than_a_terminal_is_wide():
    rewards = np.full((64, 8, 2), np.nan)
    rewards[:, :, 1] = 0.0
    names = ["a_reward_with_a_long_name", "another_reward_with_a_long_name"]
    for line in str(diagnose(rewards, None, names)).splitlines():
        assert len(line) <= 100


def test_as_many_findings_are_shown_as_fit_into_twenty_lines_but_always_the_worst_two():
    cut = 0
    for count in (*range(1, 9), 17):
        names = [f"r{k}" for k in range(count)]
        batch = np.random.default_rng(0).random((64, 8, count))
        batch[:, :, 1:] = 0.0
        diagnosis = diagnose(batch, None, names)  # one line of message and three of remedy for each
        lines = str(diagnosis).splitlines()
        shown = sum(line.startswith(("! ", "- ")) for line in lines)
        left = len(diagnosis.findings) - shown
        assert len(lines) <= 20 or shown == 2
        if left:
            cut += 1
            assert lines[-1].startswith(f"... and {left} more")
            assert len(lines) - 1 + 4 + (left > 1) > 20
    assert (cut > 2, shown, left) == (True, 2, 14)
