"""Short training runs on prepared completions, with TRL's trainer and ours. Gradients are recorded.

The rollout function depends only on the call number and the rank, so that all variants train on the
same rollouts. Rewards are multiples of 1/8: group means are exact, and a zero-variance group has
advantages of exactly 0 in every variant.
"""

import contextlib
import gc

import torch
from datasets import Dataset
from tests.integrations.variants import PROMPTS, SAMPLES, logged, settings
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

LONGEST = 16
DEAD = ("say hi", "go", "now then")
END, FIRST_BYTE, VOCABULARY = 0, 4, 260


# Training ends with a full garbage collection. Freezing the imports makes it faster.
gc.freeze()


def prepared(prompts, trainer):
    """Return completions of 1 to 16 tokens. Most of them have an end token."""
    trainer.calls = getattr(trainer, "calls", 0) + 1
    seed = 100 * trainer.calls + trainer.accelerator.process_index
    generator = torch.Generator().manual_seed(seed)
    completions = []
    for _ in prompts:
        length = int(torch.randint(1, LONGEST + 1, [1], generator=generator))
        ids = torch.randint(FIRST_BYTE, VOCABULARY, [length], generator=generator).tolist()
        completions.append(ids if length == LONGEST else [*ids[:-1], END])
    return {
        "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": completions,
        "logprobs": None,
    }


def with_tools(prompts, trainer):
    """Return completions in which every third token comes from a tool."""
    rollouts = prepared(prompts, trainer)
    rollouts["env_mask"] = [
        [int(i % 3 != 1) for i in range(len(c))] for c in rollouts["completion_ids"]
    ]
    return rollouts


def half_dead(completion_ids, prompts, **columns):
    """Return rewards that are constant within the groups of `DEAD` prompts."""
    return [
        0.5 if prompt in DEAD else sum(ids) % 8 / 8
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


def alive(completion_ids, **columns):
    """Return rewards that differ from their group's mean: one above 1, the others below 1/8."""
    return [sum(ids) % 8 / 64 + (i % SAMPLES == 0) for i, ids in enumerate(completion_ids)]


def constant(completion_ids, **columns):
    return [1.0] * len(completion_ids)


class Run(TrainerCallback):
    """Stores the results of a training run: gradients, micro-batches, parameters, the trainer."""

    def __init__(self):
        self.gradients = []
        self.micro_batches = []

    def on_pre_optimizer_step(self, *args, model, **kwargs):
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(gradients).clone())

    def finish(self, trainer):
        self.trainer = trainer
        self.parameters = flat(trainer.model)
        return self

    def logged(self, key):
        return logged(self.trainer, key)


class Interruption(TrainerCallback):
    """Simulates Ctrl-C during the second optimizer step."""

    def __init__(self):
        self.left = 4

    def on_substep_end(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def options(folder, **changed):
    wanted = {
        "per_device_train_batch_size": 4,
        "max_completion_length": LONGEST,
        "max_steps": 5,
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "epsilon": 0.01,
        "reward_weights": None,
    }
    return settings(folder, **{**wanted, **changed})


def train(
    trainer_class,
    config,
    policy,
    *,
    reward=half_dead,
    rollout_func=prepared,
    model=None,
    rows=48,
    interrupted=False,
):
    """Train five steps with SGD."""
    torch.manual_seed(0)
    run = Run()

    class Watched(trainer_class):
        def _prepare_inputs(self, batch):
            inputs = super()._prepare_inputs(batch)
            run.micro_batches.append(inputs)
            return inputs

    trainer = Watched(
        model or AutoModelForCausalLM.from_pretrained(policy),
        [reward],
        config,
        train_dataset=Dataset.from_dict({"prompt": [PROMPTS[i % 6] for i in range(rows)]}),
        processing_class=AutoTokenizer.from_pretrained(policy),
        callbacks=[run],
        rollout_func=rollout_func,
    )
    if interrupted:
        trainer.add_callback(Interruption())
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train()
        run.gradients.clear()
    trainer.train()
    return run.finish(trainer)


def theirs(policy, folder, *, how=None, **changed):
    config = GRPOConfig(**options(folder, **changed), scale_rewards="none")
    return train(GRPOTrainer, config, policy, **(how or {}))


def ours(policy, folder, *, how=None, **changed):
    config = GDPOConfig(**options(folder, **changed), advantage="grpo_no_std")
    return train(GDPOTrainer, config, policy, **(how or {}))


def gap(one, other):
    """Return the largest relative difference of a step's gradient, and of the parameters."""
    assert len(one.gradients) == len(other.gradients) == 5
    pairs = list(zip(one.gradients, other.gradients, strict=True))
    assert [bool(a.any()) for a, _ in pairs] == [bool(b.any()) for _, b in pairs]
    differences = [float((a - b).norm() / b.norm()) for a, b in pairs if b.any()]
    way = sum(g.norm() for g in other.gradients) * other.trainer.args.learning_rate
    return max(differences), float((one.parameters - other.parameters).norm() / way)
