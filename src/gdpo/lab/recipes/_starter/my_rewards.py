"""Defines a reward for recipe.yaml that does not depend on the task."""

from gdpo.rewards import Example, Reference, Reward

FREE = 2
"""Maximum number of characters in a response that scores 1."""

LIMIT = 7
"""Minimum number of characters in a response that scores 0."""


def score_brevity(completion: str, reference: Reference) -> float:
    """Return 1 for 1 or 2 characters, 0 for none or at least 7, and a linear value in between."""
    length = len(completion) or LIMIT
    return min(1.0, max(0.0, (LIMIT - length) / (LIMIT - FREE)))


brevity = Reward(
    "brevity",
    score_brevity,
    low=0.0,
    high=1.0,
    examples=(
        Example("1", {}, 1.0),
        Example("1\n\n\n\n\n", {}, 0.2),  # spaces and line breaks count
        Example("five.", {}, 0.4),
        Example("it is 1", {}, 0.0),
        Example("", {}, 0.0),  # so that saying nothing does not win
    ),
)
