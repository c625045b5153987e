"""Rewards that a policy with random weights can learn in ten steps."""

from gdpo.rewards import Example, Reward


def share_of_digits(completion, reference):
    return sum(map(str.isdigit, completion)) / max(len(completion), 1)


def shortness(completion, reference):
    return max(0.0, 1 - len(completion) / 200)


digits = Reward(
    "digits", share_of_digits, 0, 1, examples=(Example("12", {}, 1), Example("ab", {}, 0))
)
brevity = Reward("brevity", shortness, 0, 1, examples=(Example("", {}, 1),))
