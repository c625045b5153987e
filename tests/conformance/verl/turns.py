"""Checks advantages of turns on verl's own code: agent loop, reward manager, trainer and losses.

    python tests/conformance/verl/turns.py

Prints one line of JSON per check. Needs verl and TransferQueue, but no GPU and no Ray cluster.
"""

import asyncio
import contextlib
import json
import sys
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paths
import torch
from configuration import configured
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.function_tool import load_function_tools_from_path
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.config import omega_conf_to_dataclass

from gdpo.advantages import turn_gdpo
from policy import byte_tokenizer

TOOLS = Path(__file__).parents[2] / "engines" / "verl" / "tools.py"
LONGEST = 4
"""Largest number of turns of a rollout."""


class Rollouts(paths.Batch):
    """Stores rollouts with several turns. All rewards except the last one have turns."""

    def __init__(self, count):
        super().__init__(count)
        rng, rows = np.random.default_rng(2), len(self.uids)
        self.turns = rng.integers(1, LONGEST + 1, rows)
        self.lengths = rng.integers(1, 4, (rows, LONGEST))
        self.gaps = rng.integers(1, 3, (rows, LONGEST))
        self.steps = rng.integers(0, 3, (rows, LONGEST, count)).astype(float)

    def info(self, row):
        """Return what `compute_score` returns for a rollout."""
        turns = self.turns[row]
        given = {n: self.steps[row, :turns, k].tolist() for k, n in enumerate(self.names)}
        return {"score": 0.0, **given, self.names[-1]: float(self.steps[row, 0, -1])}

    def expected(self):
        """Return the advantage of each turn of each rollout."""
        shape = len(self.sizes), int(self.sizes.max())
        rewards, turns = np.zeros((*shape, LONGEST, len(self.names))), np.zeros(shape, dtype=int)
        at = [(p, s) for p, size in enumerate(self.sizes) for s in range(size)]
        for row, place in enumerate(at):
            turns[place], count = self.turns[row], self.turns[row]
            rewards[*place, :, :-1] = self.steps[row, :, :-1]
            rewards[*place, count - 1, -1] = self.steps[row, 0, -1]
        advantages = turn_gdpo(rewards, self.weights, turns=turns)
        return [advantages[place] for place in at]

    def outputs(self, row):
        """Return the turns of each output of a rollout. Every third rollout has two outputs."""
        turns = list(range(self.turns[row]))
        return [turns] if row % 3 or len(turns) < 2 else [turns[:1], turns[1:]]

    def tokens(self, row, turns, advantages):
        """Return mask and wanted advantage of each token of an output."""
        mask, wanted = [], []
        for turn in turns:
            length, gap = int(self.lengths[row, turn]), int(self.gaps[row, turn])
            gap = 0 if turn == turns[-1] else gap
            mask += [1] * length + [0] * gap
            wanted += [float(advantages[turn])] * length + [0.0] * gap
        return torch.tensor(mask), torch.tensor(wanted)


def queued(batch):
    """Return the keys, rows, tags and wanted advantages of each row in the queue, with padding."""
    found, seen, expected = [], {}, batch.expected()
    for row, uid in enumerate(batch.uids):
        session = seen[uid] = seen.get(uid, -1) + 1
        for output, turns in enumerate(batch.outputs(row)):
            mask, wanted = batch.tokens(row, turns, expected[row])
            fields = {"uid": uid, "response_mask": mask, "rm_scores": torch.zeros(len(mask))}
            fields["extra_fields"] = {"reward_extra_info": batch.info(row)}
            fields["rollout_log_probs"] = torch.zeros(len(mask))
            fields["old_log_probs"] = torch.where(torch.arange(len(mask)) % 5 == 1, 3.0, 0.0)
            found.append((f"{uid}_{session}_{output}", fields, {}, wanted))
    return zip(*paths.padded(found, padding=3), strict=True)


def v1(batch, **algorithm):
    """Return the advantages, masks and wanted advantages of verl's V1 trainer, row by row."""
    keys, rows, tags, wanted = queued(batch)
    before = [row["response_mask"] for row in rows]
    wanted = [
        torch.zeros(len(mask)) if each is None else each
        for mask, each in zip(before, wanted, strict=True)
    ]
    config = batch.config(adv_estimator="gdpo/turn_gdpo", **algorithm)
    queue = paths.computed_by_v1(config, keys, rows, tags)
    rows = [queue.rows[key] for key in keys]
    found, after = ([row[name] for row in rows] for name in ("advantages", "response_mask"))
    return map(torch.cat, (found, before, after, wanted))


def advantages_are_those_of_the_formula():
    found, mask, _, wanted = v1(Rollouts(3))
    difference = float((found - wanted * mask).abs().max())
    assert wanted.abs().max() > 1
    assert difference < 1e-5
    return {"difference": difference}


def tokens_that_verl_rejects_do_not_change_the_turns():
    """Most of the rejected tokens are inside a turn."""
    correction = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    found, before, after, wanted = v1(Rollouts(3), rollout_correction=correction)
    rejected, difference = int((before != after).sum()), float((found - wanted * after).abs().max())
    assert rejected > 10
    assert difference < 1e-5
    return {"rejected": rejected, "difference": difference}


class Server:
    """Answers with messages that end with a digit, then with one that does not."""

    def __init__(self, tokenizer, messages):
        self.tokenizer, self.messages = tokenizer, list(messages)

    async def generate(self, **_):
        ids = self.tokenizer(self.messages.pop(0), add_special_tokens=False)["input_ids"]
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[0.0] * len(ids),
            num_preempted=0,
            extra_fields={},
            routed_experts=None,
        )


async def agent(messages, **limits):
    """Return the output of verl's agent loop with our tool, for messages of the model."""
    config = configured(
        "data.max_response_length=64",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.multi_turn.format=digits",
        *[f"actor_rollout_ref.rollout.multi_turn.{key}={n}" for key, n in limits.items()],
    )
    tokenizer = byte_tokenizer()
    loop = ToolAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=Server(tokenizer, messages),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=_Dataset,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap(load_function_tools_from_path(str(TOOLS))),
    )
    return await loop.run({}, raw_prompt=[{"role": "user", "content": "press"}])


class _Dataset:
    """Stands in for verl's data set, which the loop asks for images."""


async def rewarded(output, truth, *overrides):
    """Return what verl's agent loop and reward manager make of an output."""
    config, tokenizer = configured(*overrides), byte_tokenizer()
    manager = load_reward_manager(config, tokenizer)
    manager.loop = asyncio.get_running_loop()
    scores = SimpleNamespace(compute_score=SimpleNamespace(remote=manager.run_single))
    worker = SimpleNamespace(
        config=config,
        tokenizer=tokenizer,
        reward_loop_worker_handles=[scores],
        _compute_multi_modal_inputs=lambda *_: {},
        _compute_position_ids=lambda ids, *_: torch.zeros_like(ids),
    )
    row = {"data_source": "presses", "reward_model": {"ground_truth": truth}, "extra_info": {}}
    await AgentLoopWorker._compute_score(worker, [output], kwargs=row)
    return output.extra_fields["reward_extra_info"]


OURS = (
    "reward.custom_reward_function.path=pkg://gdpo.integrations.verl",
    "reward.custom_reward_function.name=compute_score",
    "+reward.custom_reward_function.reward_kwargs.rewards="
    "['texts:last','texts:every','texts:result','texts:turns']",
)
CONVERSATIONS = {
    "ends without a call": (["ab1", "2", "no"], {}),
    "ends at the limit of turns": (["a1", "2", "abc3"], {"max_assistant_turns": 3}),
    "no call": (["no"], {}),
    "ends at the limit of tokens": (["x" * 30 + "1", "y" * 20 + "2"], {}),
}


async def rewards_read_the_models_messages_and_never_the_results_of_tools():
    for name, (messages, limits) in CONVERSATIONS.items():
        wanted = {"last": messages[-1], "all": "\n".join(messages)}
        for manager in ("naive", "dapo", "gdpo_tokens"):
            output = await agent(messages, **limits)
            chosen = f"reward.reward_manager.name={manager}"
            found = await rewarded(output, wanted, *OURS, chosen)
            read = {key: found[key] for key in ("last", "all", "result", "turns")}
            assert read == {"last": 1, "all": 1, "result": 0, "turns": 0}, (name, manager)


async def each_turn_gets_one_reward():
    file = f"reward.custom_reward_function.path={TOOLS.with_name('turn_scores.py')}"
    found = {}
    for name, (messages, limits) in CONVERSATIONS.items():
        output = await agent(messages, **limits)
        found[name] = (await rewarded(output, "", file))["digits"]
        runs = sum(1 for one, _ in groupby(output.response_mask) if one)
        assert runs == len(messages) == len(found[name]), name
    assert found["ends without a call"] == [1 / 3, 1.0, 0.0]
    return found


LOSSES = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dppo_tv", "dppo_kl", "geo_mean")


def losses_weigh_each_token_by_its_own_advantage():
    """At a ratio of 1, every loss of verl does, except the one that we refuse."""
    mask = torch.tensor([[1, 1, 0, 1, 1]])
    advantages = torch.tensor([[1.0, 1.0, 0.0, -2.0, -2.0]])
    actor = omega_conf_to_dataclass(
        configured("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1").actor_rollout_ref.actor
    )
    found = {}
    for name in LOSSES:
        logprobs = torch.full(mask.shape, -1.0, requires_grad=True)
        with contextlib.suppress(KeyError):
            loss = core_algos.get_policy_loss_fn(name)(
                old_log_prob=logprobs.detach().clone(),
                log_prob=logprobs,
                advantages=advantages,
                response_mask=mask,
                loss_agg_mode="token-mean",
                config=actor,
            )[0]
            loss.backward()
            own = -advantages * mask
            scale = (logprobs.grad * own).sum() / (own * own).sum()
            found[name] = bool(torch.allclose(logprobs.grad, scale * own, atol=1e-6) and scale > 0)
    assert [name for name, kept in found.items() if not kept] == ["geo_mean"]
    assert {"vanilla", "gspo"} < set(found)
    return found


def validation_gets_the_totals_of_turns():
    trainer = paths.v1_trainer()
    trainer.config = Rollouts(2).config(adv_estimator="gdpo/turn_gdpo")
    infos = {"reward": [1.0, 2.0], "reward_0": [[1.0, 2.0], [4.0]], "reward_1": [0.0, 1.0]}
    metrics = trainer._val_metrics_update(["d", "d"], ["p", "p"], infos, [2, 2])
    assert metrics["val-aux/d/reward_0/mean@2"] == 3.5


if __name__ == "__main__":
    checks = (
        advantages_are_those_of_the_formula,
        tokens_that_verl_rejects_do_not_change_the_turns,
        each_turn_gets_one_reward,
        rewards_read_the_models_messages_and_never_the_results_of_tools,
        losses_weigh_each_token_by_its_own_advantage,
        validation_gets_the_totals_of_turns,
    )
    for check in checks:
        found = check()
        found = asyncio.run(found) if asyncio.iscoroutine(found) else found
        sys.stdout.write(json.dumps({"check": check.__name__, "found": found}) + "\n")
