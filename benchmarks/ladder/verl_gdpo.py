"""Takes one or several steps with the code of `verl-GDPO`, which is imported from a checkout.

    python -m benchmarks.ladder.verl_gdpo UPSTREAM FOLDER BATCHES LEARNING_RATE

Run unchanged: `RLHFDataset` (prompts, truncation), `vLLMRollout.generate_sequences` around
recorded tokens (masks, positions), `RayPPOTrainer._balance_batch`, `RewardManager` with
`rlla.compute_score`, `apply_kl_penalty`, `compute_advantage`, and `compute_log_prob` and
`update_policy` of `DataParallelPPOActor` (micro-batches, loss, entropy, clipping). Not run: Ray,
vLLM, FSDP, flash attention, bfloat16. `RayPPOTrainer.fit` and `ActorRolloutRefWorker` need Ray and
CUDA, so `_step` below calls their parts in their order, with their settings.
"""

import contextlib
import io
import os
import sys
from types import SimpleNamespace

import torch
from benchmarks.ladder._cases import TOOL_CALLING
from benchmarks.ladder._recording import Step, flat, recorded
from benchmarks.ladder._stubs import Stub, TensorDict, stand_in

os.environ["EXPERIMENT_NAME"] = "qwen"  # rlla.py refuses other names
os.environ["TORCH_COMPILE_DISABLE"] = "1"


class Settings(dict):
    __getattr__ = dict.__getitem__


def import_from(upstream):
    sys.path.insert(0, f"{upstream}/verl-GDPO")
    tensordict = Stub("tensordict")
    tensordict.TensorDict = TensorDict
    sys.modules["tensordict"] = tensordict
    stand_in("ray", "hydra", "codetiming", "omegaconf", "flash_attn", "vllm", "verl.third_party")


def settings(sizes, longest):
    """Return the actor's settings: train_gdpo.sh, else ppo_trainer.yaml, after fsdp_workers.py."""
    return Settings(
        ppo_mini_batch_size=sizes.per_update,
        ppo_micro_batch_size=sizes.per_update // 2,  # 64 of 128
        use_dynamic_bsz=True,
        ppo_max_token_len_per_gpu=longest,
        grad_clip=1.0,
        clip_ratio=0.2,
        entropy_coeff=0.001,
        use_kl_loss=False,
        use_remove_padding=False,  # True needs flash attention
        ulysses_sequence_parallel_size=1,
    )


def prompts_and_rollouts(rows, folder, sizes, tokenizer):
    """Return the batch as the rollout worker returns it."""
    import pandas as pd
    from verl import DataProto
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
    from verl.workers.rollout.vllm_rollout.vllm_rollout import vLLMRollout

    pd.DataFrame(
        {
            "prompt": [row["messages"] for row in rows],
            "data_source": "rlla",
            "reward_model": [{"ground_truth": row["gold"]} for row in rows],
        }
    ).to_parquet(f"{folder}/rows.parquet")
    dataset = RLHFDataset(
        f"{folder}/rows.parquet",
        tokenizer,
        max_prompt_length=sizes.max_prompt,
        truncation="left",
        filter_prompts=True,
    )
    batch = DataProto.from_single_dict(collate_fn([dataset[i] for i in range(len(rows))]))
    asked = batch.pop(batch_keys=["input_ids", "attention_mask", "position_ids"])
    asked.meta_info = {"eos_token_id": tokenizer.eos_token_id}
    ids = [torch.tensor(ids) for row in rows for ids in row["completion_ids"]]
    responses = torch.nn.utils.rnn.pad_sequence(ids, True, tokenizer.pad_token_id)
    engine = SimpleNamespace(generate=lambda **_: (responses, torch.zeros(responses.shape)))
    config = SimpleNamespace(
        free_cache_engine=False, response_length=sizes.max_completion, n=sizes.samples
    )
    worker = SimpleNamespace(
        config=config,
        inference_engine=engine,
        sampling_params=None,
        pad_token_id=tokenizer.pad_token_id,
        update_sampling_params=lambda **_: contextlib.nullcontext(),
    )
    return batch, vLLMRollout.generate_sequences(worker, asked)


def token_limit(batch, sizes):
    """Return the limit of tokens with which the longest update has the wanted micro-batches."""
    totals = batch["attention_mask"].sum(1).split(sizes.per_update)
    longest = -(-max(int(each.sum()) for each in totals) // sizes.micro_batches)
    return max(longest, batch["attention_mask"].shape[1])


def _step(rows, folder, sizes, actor, tokenizer):
    """Do what `RayPPOTrainer.fit` does with a batch, and return the batch."""
    import numpy as np
    from verl.trainer.main_ppo import RewardManager
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, apply_kl_penalty, compute_advantage

    batch, output = prompts_and_rollouts(rows, folder, sizes, tokenizer)
    actor.config["ppo_max_token_len_per_gpu"] = limit = token_limit(output.batch, sizes)
    facts = {"micro_batch_size": 1, "max_token_len": limit, "use_dynamic_bsz": True}
    output.meta_info = {**facts, "temperature": 1.0}
    output.batch["old_log_probs"] = actor.compute_log_prob(data=output)
    batch.non_tensor_batch["uid"] = np.array([str(i) for i in range(len(rows))], dtype=object)
    order = np.repeat(np.arange(len(rows)), sizes.samples)
    repeated = {key: value[order] for key, value in batch.non_tensor_batch.items()}
    output.non_tensor_batch = repeated
    one_gpu = SimpleNamespace(actor_rollout_wg=SimpleNamespace(world_size=1))
    RayPPOTrainer._balance_batch(one_gpu, output, metrics={})
    # Any values: 'gdpo' reads the scores, from which no KL was subtracted (ray_trainer.py:178).
    output.batch["ref_log_prob"] = torch.zeros_like(output.batch["old_log_probs"])
    with contextlib.redirect_stdout(io.StringIO()):
        scores = RewardManager(tokenizer, num_examine=0)(output, step=1)
    names = ("", "_format", "_correctness", "_length")
    for name, values in zip(names, scores, strict=True):
        output.batch[f"token_level_scores{name}"] = values
    controller = FixedKLController(kl_coef=0.001)
    output, _ = apply_kl_penalty(output, kl_ctrl=controller, kl_penalty="kl")
    output = compute_advantage(output, adv_estimator="gdpo", gamma=1.0, lam=1.0)
    actor.update_policy(data=output)
    return output


def plan(batch, sizes):
    """Return which rollouts share a forward pass, for each update."""
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    longest, start, found = token_limit(batch, sizes), 0, []
    for mini in batch.split(sizes.per_update):
        _, partitions = rearrange_micro_batches(batch=mini, max_token_len=longest)
        found.append([[start + i for i in part] for part in partitions])
        start += sizes.per_update
    return found


def take_steps(upstream, folder, batches, learning_rate, sizes=TOOL_CALLING):
    import_from(upstream)
    from torch import optim
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from verl.workers.actor.dp_actor import DataParallelPPOActor

    tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.float32)
    # fsdp_workers.py:229-232
    optimizer = optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.999), weight_decay=1e-2
    )
    actor = DataParallelPPOActor(settings(sizes, 0), model, optimizer)
    rows = torch.load(f"{folder}/rollouts.pt", weights_only=True)
    step = Step()
    with recorded(step):
        for start in range(0, sizes.prompts * batches, sizes.prompts):
            chosen = rows[start : start + sizes.prompts]
            output = _step(chosen, folder, sizes, actor, tokenizer)
            step.advantages.append(output.batch["advantages"][:, 0])
            step.more["plan"] = step.more.get("plan", []) + plan(output.batch, sizes)
    step.parameters = flat(model.parameters())
    torch.save(vars(step), f"{folder}/theirs.pt")


if __name__ == "__main__":
    upstream, folder, batches, learning_rate = sys.argv[1:]
    take_steps(upstream, folder, int(batches), float(learning_rate))
