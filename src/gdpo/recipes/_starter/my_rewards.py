"""Defines a reward for recipe.yaml that does not depend on the task."""

from gdpo.rewards import Example, Reference, Reward

FREE = 2
"""Maximum number of characters in a response that scores 1."""

LIMIT = 12
"""Minimum number of characters in a response that scores 0."""


def score_brevity(completion: str, reference: Reference) -> float:  # noqa: ARG001
    """Return 1 for up to 2 characters, 0 for 12 or more, and a linear value in between."""
    length = len(completion.strip())
    return min(1.0, max(0.0, (LIMIT - length) / (LIMIT - FREE)))


brevity = Reward(
    "brevity",
    score_brevity,
    low=0.0,
    high=1.0,
    examples=(
        Example("1", {}, 1.0),
        Example("seven..", {}, 0.5),
        Example("a long response", {}, 0.0),
    ),
)
