"""Makes the shipped recipes tiny: the same task, rewards and loss, with a small batch and model."""

import json

import yaml
from teaching import teach

from gdpo.lab.recipes.starter import shipped_recipe
from gdpo.lab.tasks import resolve_task

PAIRS = [(i % 4 + 1, i // 4 + 1) for i in range(16)]
"""Small numbers with a sum of one digit."""


def tool_row(n, m):
    written = json.dumps({"name": "add", "parameters": {"a": n, "b": m}})
    call = f"<think>worked out</think>\n<tool_call>\n{written}\n</tool_call>"
    prompt = [
        {"role": "system", "content": "Tools: add(a, b). Think, then call."},
        {"role": "user", "content": f"Add {n} and {m}."},
    ]
    return {"prompt": prompt, "reward_model": {"ground_truth": call}}


ROW = {
    "gsm8k": lambda n, m: {
        "question": f"Ann has {n} apples and buys {m}. How many has she?",
        "answer": f"#### {n + m}",
    },
    "math_length": lambda n, m: {"problem": f"What is {n} + {m}?", "answer": str(n + m)},
    "tool_calling": tool_row,
}


def tiny(folder, policy, name, *, prompt, completion, steps, **changes):
    """Write the shipped recipe `name` with a tiny batch and a taught policy. Return its file.

    Args:
        folder: Folder of the recipe, its data, its policy and its run.
        policy: Folder of the policy to teach.
        name: Name of a shipped recipe.
        prompt: Maximum number of tokens in a prompt.
        completion: Maximum number of tokens in a completion.
        steps: Number of optimizer steps.
        changes: Fields of `trainer:`, and the key `rewards`.
    """
    recipe = yaml.safe_load((shipped_recipe(name) / "recipe.yaml").read_text())
    rows = [ROW[recipe["task"]](n, m) for n, m in PAIRS]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    model = teach(policy, folder / "taught", resolve_task(recipe["task"]), rows)
    half = {"rollouts_per_step": 32} if "rollouts_per_step" in recipe["batch"] else {}
    recipe |= {
        "model": str(model),
        "name": "tiny",
        "runs_dir": str(folder / "runs"),
        "data": {"source": str(folder / "rows.jsonl"), "max_prompt_length": prompt},
        "batch": {"prompts": 8, "samples": 8, "micro_batch": 32} | half,
        "rewards": changes.pop("rewards", recipe["rewards"]),
    }
    recipe["trainer"].pop("num_train_epochs", None)
    recipe["trainer"] |= {
        "max_completion_length": completion,
        "max_steps": steps,
        "learning_rate": 1e-4,
        **changes,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder / "recipe.yaml"
