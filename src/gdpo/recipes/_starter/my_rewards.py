"""A reward of recipe.yaml that does not depend on the task."""

from gdpo.rewards import Example, Reference, Reward

FREE = 2
"""Longest response that gets 1, in characters."""

LIMIT = 12
"""Shortest response that gets 0, in characters."""


def score_brevity(completion: str, reference: Reference) -> float:  # noqa: ARG001
    """Return 1 for at most 2 characters, 0 for at least 12, and a value in between otherwise."""
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
