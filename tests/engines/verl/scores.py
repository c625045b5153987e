"""Rewards that a random policy can learn, as verl's `compute_score`."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    digits = sum(c.isdigit() for c in solution_str) / max(len(solution_str), 1)
    brevity = 1 / (1 + len(solution_str))
    return {"score": digits + brevity, "digits": digits, "brevity": brevity}
