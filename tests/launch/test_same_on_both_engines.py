"""A recipe gives one completion the same advantage with TRL and with verl."""

import numpy as np
import pytest
import torch

from gdpo.integrations.verl import compute_score
from gdpo.integrations.verl._run import VerlRun
from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.data import read_data
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.training import train
from gdpo.rollouts import read_rollouts

VARIANTS = {
    "gdpo": [],
    "weights by token": ["advantage_options={token_counts: true}"],
    "a noise floor": ["advantage_options={noise_floor: {vowels: 0.01}}"],
    "another estimator, with declared ranges": ["advantage=saw"],
}


@pytest.fixture(params=VARIANTS)
def recipe(request, load, own_rewards):
    """A recipe with user-defined rewards, a gate, weights and token counts."""
    rewards = [
        f"{{name: '{own_rewards}:vowels', gate: {{on: brief, at_least: 0.83}}}}",
        f"{{name: '{own_rewards}:brief', weight: 0.5}}",
        f"{{name: '{own_rewards}:short_or', weight: 2, options: {{most: 6}}}}",
    ]
    shared = [
        f"rewards=[{', '.join(rewards)}]",
        "trainer.lr_scheduler_type=constant",
        "trainer.max_steps=2",
        "data.max_prompt_length=900",
        "batch.prompts=4",
    ]
    return load(*shared, *VARIANTS[request.param])


def columns(config, rollouts, references):
    """Return the reward columns that verl's reward loop adds to a batch."""
    kwargs = config["reward"]["custom_reward_function"]["reward_kwargs"]
    scored = [
        compute_score(
            solution_str=rollout.completion[-1]["content"],
            ground_truth=references[rollout.prompt[-1]["content"]],
            extra_info={"num_tokens": rollout.num_tokens},
            **kwargs,
        )
        for rollout in rollouts
    ]
    return {name: np.array([row[name] for row in scored]) for name in scored[0]}


@pytest.mark.slow
def test_recorded_completions_get_the_advantages_that_they_were_trained_with(recipe):
    run = train(recipe).run
    config = plan_verl(recipe, Machines(1, 1)).config
    samples = read_data(resolve(recipe).task, recipe.data).problems
    references = {sample.prompt[-1]["content"]: sample.reference for sample in samples}
    files = sorted(run.rollouts.glob("*.parquet"))
    assert len(files) == 2
    run_of_verl = VerlRun()
    for file in files:
        rollouts = read_rollouts(file)
        lengths = torch.tensor([rollout.num_tokens for rollout in rollouts])
        mask = (torch.arange(8) < lengths[:, None]).long()
        found, _ = run_of_verl.compute_advantages(
            token_level_rewards=torch.zeros(mask.shape),
            response_mask=mask,
            config=config["algorithm"],
            index=np.array([rollout.group_id for rollout in rollouts], dtype=object),
            non_tensor_batch=columns(config, rollouts, references),
        )
        trained_with = torch.tensor([rollout.advantage for rollout in rollouts])
        assert trained_with.abs().max() > 0.1
        torch.testing.assert_close(found, trained_with[:, None] * mask, atol=1e-5, rtol=0)
