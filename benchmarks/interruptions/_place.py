"""Prepares the run to interrupt: a random tiny policy, rows, a reward that can sleep, a recipe."""

import json
from pathlib import Path

from tests.engines.policy import TINY, make_policy

STEPS = 12

SLEEPS_S = 40
"""Seconds per step once the file that SWITCH names exists: 8 samples of 5 s."""

_REWARD = """
import os, time
from gdpo import Reward

def remainder(completion, reference):
    if os.path.exists(os.environ["SWITCH"]):
        time.sleep(5)
    return len(completion) % 5 / 5

def vowels(completion, reference):
    return sum(c in "aeiou" for c in completion) / max(1, len(completion))

remainder = Reward("remainder", remainder, low=0, high=1)
vowels = Reward("vowels", vowels, low=0, high=1)
"""


def prepare(folder: Path) -> None:
    """Write all that the trials share."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "sleepy.py").write_text(_REWARD)
    rows = [{"question": f"{i} + {i}?", "answer": f"Twice {i}. #### {2 * i}"} for i in range(160)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_policy(folder / "policy", **TINY)


def recipe(folder: Path, trial: Path, save_steps: int) -> Path:
    """The recipe of a trial, whose run lies in its folder."""
    path = trial / "recipe.yaml"
    path.write_text(f"""task: gsm8k
model: {folder / "policy"}
name: run
runs_dir: {trial}
data: {{source: {folder / "rows.jsonl"}}}
rewards: [{{name: "sleepy:remainder"}}, {{name: "sleepy:vowels"}}]
batch: {{prompts: 2, samples: 4, micro_batch: 4}}
trainer: {{max_completion_length: 24, max_steps: {STEPS}, save_steps: {save_steps}, seed: 1,
  learning_rate: 1.0e-3, lr_scheduler_type: constant, use_cpu: true, bf16: false,
  gradient_checkpointing: false}}
""")
    return path
