"""Takes the same steps with a recipe of this repository: `GDPOTrainer` under TRL.

Only two things are replaced. The rollouts are recorded, and `trainer.use_vllm` is set after the
trainer was made, so that TRL's correction for vLLM's probabilities runs without vLLM: the
probabilities are those of the policy in bfloat16. A rung may also replace how TRL arranges a batch
(`Arrangement`), for which neither TRL nor the recipe has a setting.

The demo's task is no rung: `GDPOTrainer` samples, and the published code repeats its tokens.
"""

import io
import json
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.ladder._recording import Step, flat, recorded
from datasets import Dataset
from transformers import Qwen2ForCausalLM

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Arrangement:
    """How the rollouts of a generation batch are arranged. The defaults are TRL's."""

    shuffled: bool = True
    plan: tuple = ()
    """Places of the rollouts of each forward pass, for each update. Empty: equal parts."""
    decays_all: bool = False
    """Whether biases and norms decay, too."""
    trls_own: bool = False
    """Whether TRL's trainer and its own GDPO take the step."""
    advantages_of: Callable[..., torch.Tensor] | None = None
    """Computes the advantages from the rewards, weights, masks and groups. None: the recipe's
    estimator does."""


def question_of(prompt):
    return prompt[-1]["content"] if isinstance(prompt, list) else ""


def written(recipe, row):
    """Return a row of the dataset in the form that the recipe's task reads."""
    if recipe == "tool_calling":
        return {"prompt": row["messages"], "reward_model": {"ground_truth": row["gold"]}}
    return {"question": question_of(row["messages"]), "answer": f"#### {row['gold']}"}


def job_of(folder, recipe, rows, sizes, batches, changes):
    """Return the checked recipe with the small batch of the ladder, and with these changes."""
    if recipe == "demo":
        project = f"{folder}/project"
        data = {"data.source": f"{project}/problems.jsonl", "trainer.max_steps": batches}
        return checked(project, {**data, **changes}, folder)
    lines = [f"{json.dumps(written(recipe, row))}\n" for row in rows]
    Path(f"{folder}/rows.jsonl").write_text("".join(lines))
    own = {
        "data.source": f"{folder}/rows.jsonl",
        "data.subset": "null",
        "data.max_prompt_length": sizes.max_prompt,
        "batch.prompts": sizes.prompts,
        "batch.samples": sizes.samples,
        "batch.rollouts_per_step": sizes.per_update,
        "batch.micro_batch": sizes.per_update // sizes.micro_batches,
        "trainer.max_completion_length": sizes.max_completion,
        "trainer.max_steps": sizes.updates * batches,
        "trainer.use_vllm": "false",
        "trainer.gradient_checkpointing": "false",
        "trainer.shuffle_dataset": "false",
    }
    return checked(RECIPES / recipe, {**own, **changes}, folder)


def checked(recipe, changes, folder):
    from gdpo.lab.recipes.read import load_recipe
    from gdpo.lab.recipes.resolve import resolve
    from gdpo.lab.training.preflight import prepare

    own = {
        "model": f"{folder}/model",
        "runs_dir": f"{folder}/runs",
        "trainer.save_strategy": "'no'",
    }
    settings = [f"{key}={value}" for key, value in {**own, **changes}.items()]
    return prepare(resolve(load_recipe(recipe, settings)))


def trls_own(config, rewards):
    """Return TRL's trainer, its configuration with GDPO, and the rewards as functions."""
    from trl import GRPOConfig, GRPOTrainer

    same = {f.name: getattr(config, f.name) for f in fields(GRPOConfig) if f.init}
    own = {"generation_batch_size": None, "multi_objective_aggregation": "normalize_then_sum"}

    def as_function(reward):
        def scored(completions, reference, **_):
            pairs = zip(completions, reference, strict=True)
            return [reward.function(text[-1]["content"], answer) for text, answer in pairs]

        return scored

    return GRPOTrainer, GRPOConfig(**{**same, **own}), [as_function(each) for each in rewards]


def take_steps(folder, recipe, rows, sizes, *, changes, arrangement, batches=1):
    """Train the recipe with these changes, and return the `Step`.

    The rollouts are the recorded ones. Without `rows`, they are sampled and kept in the `Step`.
    """
    from gdpo.integrations.trl import GDPOTrainer

    job, step = job_of(folder, recipe, rows, sizes, batches, changes), Step()
    kind, config, rewards = GDPOTrainer, job.config, list(job.resolved.rewards)
    if arrangement.trls_own:
        kind, config, rewards = trls_own(config, rewards)
    trainer = kind(
        model=f"{folder}/model",
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "reference": p.reference} for p in job.problems]
        ),
        processing_class=job.tokenizer,
    )
    if arrangement.decays_all:
        trainer.get_decay_parameter_names = lambda model: [n for n, _ in model.named_parameters()]
    if rows:
        most = job.config.max_prompt_tokens or 0
        trainer.rollout_func = recorded_rollouts(rows, sizes.samples, most)
        trainer.use_vllm, trainer.vllm_generation = True, SimpleNamespace(sync_weights=int)
        trainer._last_loaded_step = 0
    batches_scored = scored(trainer)
    printed = redirect_stdout(io.StringIO())
    with printed, recorded(step), arranged(arrangement, step, sizes, batches_scored):
        trainer.train()
    if not rows:
        step.more["sampled"] = sampled(batches_scored, sizes.samples)
    step.parameters = flat(trainer.model.parameters())
    return step


def scored(trainer):
    """Return a list to which each batch is added with its rewards, when it is scored."""
    calculate, found = trainer._calculate_rewards, []

    def calculated(inputs, prompts, completions, completion_ids):
        rewards = calculate(inputs, prompts, completions, completion_ids)
        found.append((inputs, completion_ids, rewards, trainer.reward_weights))
        return rewards

    trainer._calculate_rewards = calculated
    return found


def sampled(batches_scored, samples):
    """Return the groups of all batches in the form of recorded rollouts."""
    return [
        {
            "messages": inputs[i]["prompt"],
            "gold": inputs[i]["reference"]["answer"],
            "completion_ids": [list(map(int, ids)) for ids in completion_ids[i : i + samples]],
        }
        for inputs, completion_ids, *_ in batches_scored
        for i in range(0, len(inputs), samples)
    ]


def recorded_rollouts(rows, samples, most):
    """Return a `rollout_func` that answers each prompt with the recorded responses to it."""
    of_question = {question_of(row["messages"]): row["completion_ids"] for row in rows}

    def rollouts(prompts, trainer):
        prompt_ids = [ids[-most:] for ids in trainer._tokenize_prompts(prompts)[0]]
        # TRL is first tried on made-up prompts.
        answers = [of_question.get(question_of(prompt)) or [[5, 6]] * samples for prompt in prompts]
        ids = [answer[i % samples] for i, answer in enumerate(answers)]
        engine = Qwen2ForCausalLM(trainer.model.config).to(torch.bfloat16)
        engine.load_state_dict(trainer.model.state_dict())
        pairs = zip(prompt_ids, ids, strict=True)
        logprobs = [logps(engine, prompt, completion) for prompt, completion in pairs]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}

    return rollouts


@torch.no_grad()
def logps(model, prompt, completion):
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)[range(len(completion)), completion].tolist()


@contextmanager
def arranged(arrangement, step, sizes, batches_scored):
    """Replace how TRL shuffles and splits a generation batch, and keep its advantages."""
    from trl.trainer import grpo_trainer as theirs

    plan, theirs_shuffle, theirs_split = (
        list(arrangement.plan),
        theirs.shuffle_sequence_dict,
        theirs.split_tensor_dict,
    )

    def shuffle(batch):
        if arrangement.advantages_of:
            *_, rewards, weights = batches_scored[-1]
            batch["advantages"] = arrangement.advantages_of(
                rewards=rewards.numpy(),
                weights=weights.numpy(),
                mask=batch["completion_mask"].numpy(),
                group=np.arange(len(rewards)) // sizes.samples,
            )
        step.advantages.append(batch["advantages"].clone())
        return theirs_shuffle(batch) if arrangement.shuffled else batch

    def split(batch, count):
        if not plan:
            return theirs_split(batch, count)
        updates = [plan.pop(0) for _ in range(sizes.updates)]
        return [part for update in updates for part in parts(batch, update, count // sizes.updates)]

    changed = {"shuffle_sequence_dict": shuffle, "split_tensor_dict": split}
    with patch.multiple(theirs, **changed):
        yield


def parts(batch, places, count):
    """Return the forward passes of an update, and empty ones until there are `count`."""

    def taken(chosen):
        return {
            key: value[chosen] if isinstance(value, torch.Tensor) and value.ndim else value
            for key, value in batch.items()
        }

    found, one = [taken(chosen) for chosen in places], taken([0])
    empty = {**one, "completion_mask": torch.zeros_like(one["completion_mask"])}
    return found + [empty] * (count - len(found))
