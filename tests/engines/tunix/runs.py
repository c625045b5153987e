"""Complete trainings of tunix (JAX, CPU) with our estimators.

    python -m tests.engines tunix

tunix's own Llama with random weights, its vanilla rollout and its `GRPOLearner`, over a vocabulary
of words. In `agentic`, the learner is the agentic `GRPOLearner`, which passes one group at a time.
"""

import os
from dataclasses import replace
from itertools import count

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import grain
import jax
import numpy as np
import optax
from flax import nnx
from tests.conformance.others.adapters import adapter
from tests.engines.checks import advantage_difference, analyzed, figures, main, means
from tunix.models.llama3 import model as llama
from tunix.rl import rl_cluster
from tunix.rl.agentic import agentic_grpo_learner
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout
from tunix.tests.test_common import MockVocab

from gdpo.rollouts import Rollout, rollout_file, write_rollouts

register = adapter("tunix").register

STEPS, PROMPTS, SAMPLES = 20, 4, 8
WEIGHTS = {"yes": 1.0, "plain": 0.25}
HALF_LIFE = {"scale_half_life": 128}
LONGEST = 32
"""Limit of an agentic response, in tokens. tunix drops a response that reaches it."""
ENDS = list(range(22, 32))
"""Words that end an agentic response, because untrained weights rarely generate `</s>`."""
SAMPLING = {
    "max_tokens_to_generate": 12,
    "max_prompt_length": 8,
    "kv_cache_size": 64,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "return_logprobs": True,
}
WORDS = ["<pad>", "<s>", "</s>", "yes", "no", *(f"w{i}" for i in range(27))]


def yes(prompts, completions, **_):
    """Return the share of words that are `yes`."""
    words = [text.split(" ") for text in completions]
    return [each.count("yes") / len(each) for each in words]


def plain(prompts, completions, **_):
    """Return 1 for one word, however often it is repeated, and less for more words."""
    return [1.0 / len(set(text.split(" "))) for text in completions]


def training(estimator):
    def run(folder, policy):
        register("ours", reward_keys=list(WEIGHTS), reward_weights=WEIGHTS, estimator=estimator)
        learner = learner_of(grpo_learner, cluster())
        differences = watch(learner, folder)
        train(learner, 27)
        names = list(WEIGHTS)
        return figures(folder, names, by=0.1, differences=differences, estimator=estimator)

    return run


def one_group_at_a_time(folder, policy):
    rule = register("ours", reward_keys=list(WEIGHTS), reward_weights=WEIGHTS, options=HALF_LIFE)
    made = seeded(cluster(logps=1, max_tokens_to_generate=LONGEST, eos_tokens=ENDS))
    limits = {"max_response_length": LONGEST, "max_concurrency": SAMPLES}
    learner = learner_of(agentic_grpo_learner, made, limits, chat_parser=Parser())
    process, groups = learner._process_results, []

    def recorded(trajectories, *arguments, **options):
        (example,) = process(trajectories, *arguments, **options)
        groups.append(len(trajectories))
        texts = [spoken(each.traj["conversation_text"]) for each in trajectories]
        lengths = [int(each.sum()) for each in example.completion_mask]
        record(folder, len(groups), texts, lengths, example.advantages)
        return [example]

    learner._process_results = recorded
    train(learner, 10)
    assert groups == [SAMPLES] * (PROMPTS * STEPS)  # the learner passed each group on its own
    assert rule.state()["rollouts"] > 0
    assert analyzed(folder) == list(WEIGHTS)
    values = means(folder, "yes")
    first, last = np.mean(values[: 4 * PROMPTS]), np.mean(values[-4 * PROMPTS :])
    assert last >= first + 0.1, f"yes went from {first:.3f} to {last:.3f}"
    return {
        "advantage_difference": advantage_difference(folder, "gdpo", HALF_LIFE),
        "component": ["yes", float(first), float(last)],
    }


def learner_of(module, cluster, limits=None, **parts):
    """Return a learner of one of tunix's modules, with our estimator and two rewards."""
    ours = {"advantage_estimator": "ours", "reward_manager": "ours"}
    config = module.GRPOConfig(num_generations=SAMPLES, beta=0.0, **ours, **(limits or {}))
    rewards = [yes, plain]
    return module.GRPOLearner(rl_cluster=cluster, reward_fns=rewards, algo_config=config, **parts)


def train(learner, words):
    """Train on prompts of two words, the first of which is one of so many."""
    rows = [{"prompts": f"w{i % words} w{i % 5}"} for i in range(PROMPTS * STEPS)]
    learner.train(grain.MapDataset.source(rows).batch(PROMPTS))
    assert learner.rl_cluster.global_steps == STEPS


def seeded(made):
    """Give each call of the rollout a seed of its own, and return the cluster.

    The vanilla rollout uses seed 0 in every call. An agentic learner generates each sample in a
    call of its own, so all samples of a prompt would be identical.
    """
    generate, seeds = made.rollout.generate, count(1)

    def varied(prompts, rollout_config, **options):
        return generate(prompts, replace(rollout_config, seed=next(seeds)), **options)

    made.rollout.generate = varied
    return made


class Parser:
    """Writes a conversation as its words."""

    def parse(self, messages, **_):
        return " ".join(str(message["content"]) for message in messages)


def spoken(conversation):
    """Return what the model said; nothing if tunix dropped its response."""
    said = [each["content"] for each in conversation if each["role"] == "assistant"]
    return said[0] if said else ""


def watch(learner, folder):
    """Record the rollouts that tunix trains on. Return a list for the log-probabilities.

    The list gets, for each step, how far the sampler's are from those of the trained weights.
    """
    differences, generated = [], []
    cluster, advantages_of = learner.rl_cluster, learner._generate_and_compute_advantage
    generate = cluster.generate

    def keep(*arguments, **options):
        generated.append(generate(*arguments, **options))
        return generated[-1]

    def recorded(inputs, *arguments, **options):
        example = advantages_of(inputs, *arguments, **options)
        output = generated[-1]
        lengths = [len(each) for each in output.tokens]
        record(folder, len(differences) + 1, output.text, lengths, example.advantages)
        differences.append(difference(cluster, output, example))
        return example

    cluster.generate, learner._generate_and_compute_advantage = keep, recorded
    return differences


def record(folder, step, texts, lengths, advantages):
    scores = {each.__name__: each(None, texts) for each in (yes, plain)}
    rollouts = [
        Rollout(
            run="tunix",
            step=step,
            group_id=i // SAMPLES,
            sample_id=i % SAMPLES,
            prompt="",
            completion=text,
            rewards={name: values[i] for name, values in scores.items()},
            weights=WEIGHTS,
            advantage=float(advantages[i]),
            num_tokens=lengths[i],
            finish_reason="length",
        )
        for i, text in enumerate(texts)
    ]
    write_rollouts(rollout_file(folder, step), rollouts)


def difference(cluster, output, example):
    """Return the mean difference of a token's log-probability between sampler and trainer."""
    trained = cluster.get_old_per_token_logps(
        prompt_tokens=example.prompt_ids,
        completion_tokens=example.completion_ids,
        micro_batch_size=len(output.tokens),
    )
    tokens = [
        np.asarray(trained[i][: len(sampled)]) - np.asarray(sampled)
        for i, sampled in enumerate(output.logprobs)
    ]
    return float(np.abs(np.concatenate(tokens)).mean())


def cluster(*, logps=PROMPTS, **rollout):
    """Return tunix's cluster: one process is actor, reference and rollout.

    Args:
        logps: Number of prompts whose log-probabilities are computed together.
        rollout: Settings of the rollout that differ.
    """
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    sizes = ("mini_batch_size", "train_micro_batch_size", "rollout_micro_batch_size")
    return rl_cluster.RLCluster(
        actor=model(),
        tokenizer=MockVocab({word: i for i, word in enumerate(WORDS)}),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adam(3e-3),
                eval_every_n_steps=10_000,
                max_steps=STEPS,
                compute_logps_micro_batch_size=logps,
                **dict.fromkeys(sizes, PROMPTS),
            ),
            rollout_config=base_rollout.RolloutConfig(**SAMPLING | rollout),
        ),
    )


def model():
    config = llama.ModelConfig(
        num_layers=2,
        vocab_size=len(WORDS),
        embed_dim=64,
        hidden_dim=128,
        num_heads=2,
        head_dim=32,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
        weight_tying=False,
    )
    return llama.Llama3(config, rngs=nnx.Rngs(0))


ESTIMATORS = ("gdpo", "mo_grpo", "per_reward_batch_std")

if __name__ == "__main__":
    runs = {each: training(each) for each in ESTIMATORS} | {"agentic": one_group_at_a_time}
    main(runs, ["google-tunix", "jax"])
