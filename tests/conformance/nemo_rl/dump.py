"""Writes NeMo-RL's own log files with steps of `grpo_train` on known texts.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/dump.py FOLDER

`grpo_train` runs from the prompts of `known_rollouts` to the end of each step, and its `Logger`
writes `FOLDER/train_data_step<n>.jsonl`. Two parts are stand-ins: a generator that returns the
known texts, and a policy that does not train.
"""

import sys
from unittest.mock import MagicMock

import paths
import torch
from known_rollouts import STEPS, known
from nemo_rl.environments.utils import create_env
from nemo_rl.utils.logger import Logger
from source import start

from gdpo.integrations.nemo_rl import install

NAMES = ["whole_format", "brevity"]


def generator(steps):
    """Return a stand-in for the generator, which responds with the texts of each step."""
    answers = iter([paths.generated([each.completion for each in step]).generate for step in steps])
    return MagicMock(
        generate=lambda data, **more: next(answers)(data, **more), requires_kv_scale_sync=False
    )


def policy():
    """Return a stand-in for the policy, which does not train."""
    learner = paths.policy()
    counts = {"global_valid_toks": [1], "global_valid_seqs": [1]}
    errors = {"token_mult_prob_error": [1.0], "gen_kl_error": [0.0]}
    of_step = {"loss": torch.zeros(1), "grad_norm": torch.zeros(1)}
    learner.train = lambda data, *_, **__: of_step | {"all_mb_metrics": counts | errors}
    return learner


def config(folder, steps):
    changed = paths.configured(name="gdpo", gdpo_reward_keys=NAMES)
    changed.grpo.num_prompts_per_step = len(steps[0])
    changed.grpo.max_num_steps = len(steps)
    changed.grpo.val_period = 0
    changed.grpo.val_at_start = changed.grpo.val_at_end = False
    changed.checkpointing["enabled"] = False
    changed.logger["log_dir"] = str(folder)
    for logger in ("wandb", "swanlab", "tensorboard", "mlflow"):
        changed.logger[f"{logger}_enabled"] = False
    changed.logger["monitor_gpus"] = False
    return changed


def main(folder):
    install()
    paths.gdpo_environment.register()
    start()
    steps = [known(step) for step in STEPS]
    prompts = [[each.prompt for each in step] for step in steps]
    ids = [[torch.tensor(list(map(ord, text))) for text in step] for step in prompts]
    changed = config(folder, steps)
    paths.train(
        policy(),
        generator(steps),
        list(map(paths.questions, prompts, ids)),
        create_env("gdpo", {"rewards": "story_rewards:rewards"}),
        changed,
        Logger(changed.logger),
    )


if __name__ == "__main__":
    main(sys.argv[1])
