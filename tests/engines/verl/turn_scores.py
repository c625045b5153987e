"""Rewards of the turns of `tools.py`, as verl's `compute_score`."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """Return the rewards: `digits` for each turn, and `brevity` for the whole rollout."""
    turns = int(extra_info["num_turns"]) // 2  # verl counts messages of both sides
    digits = [*extra_info["tool_rewards"], *[0.0] * turns][:turns]
    brevity = 1 / (1 + len(solution_str))
    return {"score": sum(digits) + brevity, "digits": digits, "brevity": brevity}
