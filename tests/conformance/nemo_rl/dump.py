"""Writes NeMo-RL's own log files with steps of `grpo_train` on recorded texts.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/dump.py RECORDED FOLDER

RECORDED contains rollouts that gdpo recorded, one parquet file per step. `grpo_train` runs from
their prompts to the end of each step, and its `Logger` writes `FOLDER/train_data_step<n>.jsonl`.
Two parts are stand-ins: a generator that returns the recorded texts, and a policy that does not
train. Prints one line of JSON.
"""

import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import paths
import pyarrow.parquet as pq
import ray
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.utils import create_env
from nemo_rl.utils.logger import Logger

from gdpo.integrations.nemo_rl import install

NAMES = ["whole_format", "brevity"]


def text(messages):
    return "".join(message["content"] for message in messages)


def prompts(rollouts):
    """Return a dataloader's batch for a step."""
    ids = [torch.tensor(list(map(ord, text(each["prompt"])))) for each in rollouts]
    return BatchedDataDict(
        message_log=[
            [{"role": "user", "content": text(each["prompt"]), "token_ids": tokens}]
            for each, tokens in zip(rollouts, ids, strict=True)
        ],
        length=torch.tensor(list(map(len, ids))),
        loss_multiplier=torch.ones(len(ids)),
        task_name=["stories"] * len(ids),
        extra_env_info=[{"ground_truth": {}}] * len(ids),
        idx=list(range(len(ids))),
    )


def generator(steps):
    """Return a stand-in for the generator, which responds with the texts of each step."""
    answers = iter(
        [paths.generated([text(each["completion"]) for each in step]).generate for step in steps]
    )
    return MagicMock(
        generate=lambda data, **more: next(answers)(data, **more), requires_kv_scale_sync=False
    )


def policy():
    """Return a stand-in for the policy, which does not train."""
    learner = paths.policy()
    of_step = {"loss": torch.zeros(1), "grad_norm": torch.zeros(1), "all_mb_metrics": {}}
    of_step["all_mb_metrics"] = {
        "global_valid_toks": [1],
        "global_valid_seqs": [1],
        "token_mult_prob_error": [1.0],
        "gen_kl_error": [0.0],
    }
    learner.train = lambda data, *_, **__: of_step
    return learner


def config(folder, steps):
    changed = paths.configured(name="gdpo", gdpo_reward_keys=NAMES)
    changed.grpo.num_generations_per_prompt = 1  # the groups are in the batch
    changed.grpo.num_prompts_per_step = len(steps[0])
    changed.grpo.max_num_steps = len(steps)
    changed.grpo.val_period = 0
    changed.grpo.val_at_start = changed.grpo.val_at_end = False
    changed.checkpointing["enabled"] = False
    changed.policy["generation"]["vllm_cfg"]["async_engine"] = False
    changed.logger["log_dir"] = str(folder)
    for logger in ("wandb", "swanlab", "tensorboard", "mlflow"):
        changed.logger[f"{logger}_enabled"] = False
    changed.logger["monitor_gpus"] = False
    return changed


def train(steps, folder):
    master_config = config(folder, steps)
    grpo.grpo_train(
        policy(),
        generator(steps),
        [prompts(step) for step in steps],
        None,
        paths.Tokenizer(),
        MagicMock(),
        {"stories": create_env("gdpo", {"rewards": "story_rewards:rewards"})},
        None,
        Logger(master_config.logger),
        MagicMock(),
        grpo._initial_grpo_save_state(),
        master_config,
    )


def main(recorded, folder):
    steps = [pq.read_table(f).to_pylist() for f in sorted(Path(recorded).glob("step_*.parquet"))]
    install()
    paths.gdpo_environment.register()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    out, sys.stdout = sys.stdout, sys.stderr  # NeMo-RL prints
    train(steps, folder)
    printed = {"steps": len(steps), "rows": sum(map(len, steps))}
    out.write(json.dumps({"version": paths.nemo_rl.__version__, **printed}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
