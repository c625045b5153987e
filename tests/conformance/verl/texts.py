"""Rewards that show which text of a rollout verl passes to gdpo's rewards."""

from gdpo import Reward


def is_said(text, reference):
    return float(text == reference["last"])


def is_all_said(text, reference):
    return float(text == reference["all"])


def has_result(text, reference):
    return float("ok" in text)  # what the tool returns


rewards = [
    Reward("last", is_said, 0, 1),
    Reward("all", is_all_said, 0, 1, scope="all"),
    Reward("result", has_result, 0, 1, scope="all"),
    Reward("turns", lambda m, _: has_result(m[-1]["content"], _), 0, 1, of="turn"),
]
last, every, result, turns = rewards
