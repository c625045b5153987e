"""Provides rollouts of a run that gdpo recorded, for the frameworks' writers."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq


@dataclass(frozen=True)
class Recorded:
    """Stores one rollout, with the fields of `Known`. Its token ids are arbitrary."""

    row: dict

    @property
    def group(self):
        return self.row["group_id"]

    @property
    def sample(self):
        return self.row["sample_id"]

    @property
    def rewards(self):
        return self.row["rewards"]

    @property
    def weights(self):
        return self.row["weights"]

    @property
    def total(self):
        return sum(self.weights[name] * value for name, value in self.rewards.items())

    @property
    def advantage(self):
        return self.row["advantage"]

    @property
    def tokens(self):
        return list(range(self.row["num_tokens"]))

    @property
    def cut(self):
        return self.row["finish_reason"] == "length"

    @property
    def prompt(self):
        return _text(self.row["prompt"])

    @property
    def completion(self):
        return _text(self.row["completion"])

    @property
    def truth(self):
        return json.loads(self.row["extra"])["answer"]


def _text(messages):
    return "".join(message["content"] for message in messages)


def recorded(folder):
    """Return the rollouts of each step."""
    files = sorted(Path(folder).glob("step_*.parquet"))
    steps = [[Recorded(row) for row in pq.read_table(file).to_pylist()] for file in files]
    return {rollouts[0].row["step"]: rollouts for rollouts in steps}
