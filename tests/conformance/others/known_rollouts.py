"""Defines two steps of three groups of four rollouts with two rewards, with all numbers."""

from dataclasses import dataclass

STEPS, GROUPS, SAMPLES = (3, 4), 3, 4
WEIGHTS = {"correct": 1.0, "brief": 0.5}


@dataclass(frozen=True)
class Known:
    """Stores one rollout. Its numbers are exact in single precision."""

    step: int
    group: int
    sample: int
    truth = "4"
    weights = WEIGHTS

    @property
    def rewards(self):
        correct = float((self.step + self.group * self.sample) % 2)
        return {"correct": correct, "brief": self.sample / 4 + self.group / 8}

    @property
    def total(self):
        return sum(WEIGHTS[name] * value for name, value in self.rewards.items())

    @property
    def advantage(self):
        return self.sample - 1.5 + self.group / 8

    @property
    def tokens(self):
        return list(range(5, 6 + self.sample))

    @property
    def cut(self):
        return self.sample == SAMPLES - 1

    @property
    def prompt(self):
        return f"{self.group} + {self.step}?"

    @property
    def completion(self):
        if self.rewards["correct"]:
            return f"<think>{'a' * self.sample}</think>\n<answer>4</answer>"
        return "a" * (1 + self.sample)


def known(step):
    """Return the rollouts of a step, grouped."""
    return [Known(step, group, sample) for group in range(GROUPS) for sample in range(SAMPLES)]
