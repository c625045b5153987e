"""GDPO with the published epsilons, as an estimator that a recipe can name.

gdpo train recipes/gsm8k --set advantage=benchmarks.ladder.epsilon:trl_gdpo
"""


def trl_gdpo(rewards, weights):
    """Normalize with 1e-4 added to both standard deviations, as `trl-GDPO` does."""
    centered = rewards - rewards.mean(1, keepdims=True)
    each = centered / (rewards.std(1, keepdims=True) + 1e-4)
    total = (each * weights).sum(-1)
    return (total - total.mean()) / (total.std() + 1e-4)
