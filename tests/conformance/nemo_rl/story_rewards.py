"""Defines two rewards for short stories that read only the text."""

import re

from gdpo import Reward

WHOLE = re.compile(r"\s*<think>[^<]*</think>\s*<answer>[^<]*</answer>\s*")


def _whole(text, reference):
    return float(WHOLE.fullmatch(text) is not None)


def _short(text, reference):
    return max(-1.0, 1 - len(text) / 40)


whole_format = Reward("whole_format", _whole, low=0.0, high=1.0)
"""1 if reasoning and answer are in their tags, else 0."""

brevity = Reward("brevity", _short, low=-1.0, high=1.0)
"""1 for an empty text, falling to -1 at 80 characters."""

rewards = [whole_format, brevity]
