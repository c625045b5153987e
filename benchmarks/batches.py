"""Prints the batch and the length of every shipped recipe, on both engines and several GPU counts.

    python -m benchmarks.batches

Prints one line per recipe and engine: rollouts per generation and per optimizer step, optimizer
steps (generations), and for each number of GPUs how they share the batch: micro-batch x
accumulation (TRL) or prompts per mini-batch (verl). "=" means that the batch equals that of one
GPU. A number of GPUs that cannot share the batch is marked as refused.
"""

from gdpo.errors import ConfigError
from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.batches import split_batch
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.starter import shipped_recipe, shipped_recipes

GPUS = (1, 2, 4, 6, 8, 16)
ROWS = {"gsm8k": 7473, "tool_calling": 3920, "tool_calling_3b": 3920}
"""Rows of the training data, for recipes whose length is in epochs."""


def on_trl(recipe, gpus):
    split = split_batch(recipe, gpus)
    rollouts = split.micro_batch * split.per_generation * gpus
    per_step = split.micro_batch * split.per_step * gpus
    return (rollouts, per_step), f"{split.micro_batch}x{split.per_step}"


def on_verl(recipe, gpus):
    config = plan_verl(recipe, Machines(1, gpus)).config
    samples, prompts = recipe.batch.samples, config["data"]["train_batch_size"]
    mini_batch = config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    return (prompts * samples, mini_batch * samples), f"{mini_batch}"


def cell(engine, recipe, gpus):
    try:
        batch, how = engine(recipe, gpus)
    except ConfigError as error:
        if "cannot share" not in str(error):
            raise
        return "refused"
    return f"{how} {'=' if batch == engine(recipe, 1)[0] else batch}"


def length(name, recipe, per_generation):
    steps = recipe.trainer.get("max_steps")
    if steps is None:
        epochs = recipe.trainer["num_train_epochs"]
        steps = ROWS[name] // recipe.batch.prompts * per_generation * epochs
    return f"{steps:,} ({steps // per_generation:,})"


def main():
    heads = ("recipe", "engine", "rollouts / step", "steps (gen.)", *(f"{n} GPU" for n in GPUS))
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in shipped_recipes():
        recipe = load_recipe(shipped_recipe(name))
        for engine in (on_trl, on_verl):
            (rollouts, per_step), _ = engine(recipe, 1)
            cells = [cell(engine, recipe, gpus) for gpus in GPUS]
            steps = length(name, recipe, rollouts // per_step)
            batch = f"{rollouts:,} / {per_step:,}"
            print(f"| {name} | {engine.__name__[3:]} | {batch} | {steps} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
