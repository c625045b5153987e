"""Rows, rewards that vary on random text, and a recipe that trains in two seconds."""

import json
import sys
from pathlib import Path

import pytest

from gdpo.training import Recipe, load_recipe

REWARDS = """
from gdpo import Reward

def share_of_vowels(completion, reference):
    return sum(c in "aeiou" for c in completion) / max(1, len(completion))

def brevity(completion, reference):
    return max(0.0, 1 - len(completion) / 40)

vowels = Reward("vowels", share_of_vowels, low=0, high=1)
brief = Reward("brief", brevity, low=0, high=1)
always_half = Reward("always_half", lambda completion, reference: 0.5, low=0, high=1)
raises = Reward("raises", lambda completion, reference: 1 / len(completion), low=0, high=10)
not_a_number = Reward("not_a_number", lambda completion, reference: float("nan"), low=0, high=1)
too_high = Reward("too_high", lambda completion, reference: 2.0, low=0, high=1)
no_reward = share_of_vowels

def short_or(most=10, *, name="short"):
    return Reward(name, lambda n, _: float(n <= most), low=0, high=1, of="tokens")
"""


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"question": f"What is {i} + {i}?", "answer": f"Twice {i}. #### {2 * i}"})
        for i in range(10)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def own_rewards(tmp_path, monkeypatch) -> str:
    """The name of a module with rewards of a user's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)
    return "own_rewards"


@pytest.fixture
def recipe_file(tmp_path, tiny_policy, rows, own_rewards) -> Path:
    """A recipe that trains in two seconds: 4 steps of 2 prompts x 4 samples, 5 steps per epoch."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""task: gsm8k
model: {tiny_policy}
name: tiny
runs_dir: {tmp_path / "runs"}
data:
  source: {rows}
rewards:
  - name: {own_rewards}:vowels
  - name: {own_rewards}:brief
    weight: 0.5
  - name: format
trainer:
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 2
  num_generations: 4
  max_completion_length: 8
  learning_rate: 1e-2
  gradient_checkpointing: false
  max_steps: 4
  save_steps: 1
"""
    )
    return path


@pytest.fixture
def recipe(recipe_file) -> Recipe:
    return load_recipe(recipe_file)
