"""Trains once with `GDPOTrainer` and vLLM, on a CPU.

    python training.py FOLDER POLICY [FIELD=VALUE ...] [--prompts FILE] [--resume] [--die-at STEP]

The fields are those of `GDPOConfig`, in JSON. Writes what TRL logs to FOLDER/log.json, and a
rollout record to FOLDER/rollouts.
"""

import argparse
import json
import os
import signal
from pathlib import Path

from cpu_trl import patch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer


def digits(completions, **_):
    """Return the share of characters that are digits."""
    return [sum(map(str.isdigit, text)) / max(len(text), 1) for text in completions]


def brevity(completions, **_):
    """Return 1 for an empty text, falling by 1 per 200 characters."""
    return [1 - len(text) / 200 for text in completions]


class Dies(TrainerCallback):
    """Kills the process at the end of a step, as a machine that fails does."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def configuration(folder, fields):
    settings = {
        "output_dir": str(folder),
        "rollouts_dir": str(folder / "rollouts"),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": 0,
        "max_steps": 12,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "reward_weights": {"digits": 1.0, "brevity": 0.25},
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "max_completion_length": 16,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_max_model_length": 256,
    }
    return GDPOConfig(**settings | fields)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("policy")
    parser.add_argument("fields", nargs="*")
    parser.add_argument("--prompts", type=Path, help="JSON file with a list of prompts")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-at", type=int)
    options = parser.parse_args()
    pairs = (each.split("=", 1) for each in options.fields)
    config = configuration(options.folder, {key: json.loads(value) for key, value in pairs})
    if config.vllm_mode == "server":
        patch()
    prompts = [f"What is {i} + {j}?" for i in range(8) for j in range(8)]
    if options.prompts:
        prompts = json.loads(options.prompts.read_text())
    rows = Dataset.from_dict({"prompt": prompts})
    trainer = GDPOTrainer(
        model=options.policy,
        args=config,
        train_dataset=rows,
        eval_dataset=rows.select(range(4)),
        reward_funcs=[digits, brevity],
        processing_class=AutoTokenizer.from_pretrained(options.policy),
        callbacks=[Dies(options.die_at)] if options.die_at else [],
    )
    trainer.train(resume_from_checkpoint=options.resume or None)
    if trainer.accelerator.is_main_process:
        log = trainer.state.log_history
        (options.folder / "log.json").write_text(json.dumps(log, default=float))


if __name__ == "__main__":
    main()
