"""Makes a whole GRPO run of ms-swift on this machine's CPU, with two rewards from a plugin.

    python tests/conformance/others/ms_swift_training.py FOLDER [--own]

Creates a random Qwen2 with two layers, its data and the plugin in FOLDER, and runs `swift rlhf`
there. `--own` leaves `--scale_rewards gdpo` to ms-swift. NPROC_PER_NODE=2 in the environment starts
two processes. Prints, each as one line of JSON: the command, the logged metrics, and for each step
how far the advantages in `output/completions.jsonl` are from the formula.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "engines"))

from policy import byte_tokenizer

ADAPTER = Path(__file__).parents[3] / "examples" / "adapters" / "ms_swift.py"
SPECIALS = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")

REWARDS = """
from gdpo import Reward


def share_of_letters(completion, reference):
    return sum(c.isascii() and c.isalpha() for c in completion) / max(1, len(completion))


def share_of_digits(completion, reference):
    if not reference["digits"]:
        return None
    return sum(c.isascii() and c.isdigit() for c in completion) / max(1, len(completion))


letters = Reward("letters", share_of_letters, low=0, high=1)
digits = Reward("digits", share_of_digits, low=0, high=1)
"""

PLUGIN = """
from gdpo_ms_swift import register_rewards{also}
from swift_rewards import digits, letters

register_rewards([letters, digits])
{then}
"""

OPTIONS = {
    "rlhf_type": "grpo",
    "model": "model",
    "model_type": "qwen2",
    "template": "chatml",
    "dataset": "train.jsonl",
    "external_plugins": "plugin.py",
    "reward_funcs": "letters digits",
    "reward_weights": "1.0 0.5",
    "scale_rewards": "gdpo",
    "num_generations": "4",
    "per_device_train_batch_size": "16",
    "gradient_accumulation_steps": "1",
    "max_completion_length": "24",
    "max_steps": "6",
    "learning_rate": "1e-3",
    "tuner_type": "full",
    "torch_dtype": "float32",
    "log_completions": "true",
    "logging_steps": "1",
    "save_steps": "6",
    "report_to": "none",
    "seed": "0",
    "output_dir": "output",
    "add_version": "false",
}

TWO_PROCESSES = {"use_cpu": "true", "ddp_backend": "gloo"}
"""Required for two processes (else each trains its own model), an error for one process."""


def make_model(folder):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = byte_tokenizer(SPECIALS, chat_template=None)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(folder, own):
    folder.mkdir(parents=True)
    make_model(folder / "model")
    rows = [
        {
            "messages": [{"role": "user", "content": f"Write something, number {i}."}],
            "reference": json.dumps({"digits": i % 4 != 3}),
        }
        for i in range(32)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "swift_rewards.py").write_text(REWARDS)
    shutil.copy(ADAPTER, folder / "gdpo_ms_swift.py")
    also, then = ("", "") if own else (", use_estimator", 'use_estimator("gdpo")')
    (folder / "plugin.py").write_text(PLUGIN.format(also=also, then=then).lstrip())


def differences(folder):
    import numpy as np

    from gdpo import gdpo

    found = []
    for line in (folder / "output/completions.jsonl").read_text().splitlines():
        table = json.loads(line)
        rewards = np.array([table["letters"], table["digits"]]).T.reshape(-1, 4, 2)
        expected = gdpo(rewards, [1.0, 0.5]).reshape(-1)
        found.append(float(np.abs(np.array(table["advantages"]) - expected).max()))
    return found


def main():
    folder = Path(sys.argv[1]).resolve()
    prepare(folder, "--own" in sys.argv)
    options = OPTIONS | (TWO_PROCESSES if "NPROC_PER_NODE" in os.environ else {})
    words = [word for key, value in options.items() for word in (f"--{key}", *value.split())]
    swift = Path(sys.executable).with_name("swift")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "USE_HF": "1"}
    command = [str(swift), "rlhf", *words]
    sys.stdout.write(json.dumps({"command": ["swift", *command[1:]]}) + "\n")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        sys.exit(f"swift failed; the end of {folder / 'log.txt'}:\n{done.stderr[-3000:]}")
    logged = [
        json.loads(line) for line in (folder / "output/logging.jsonl").read_text().splitlines()
    ]
    sys.stdout.write(json.dumps({"logged": logged}) + "\n")
    sys.stdout.write(json.dumps({"differences": differences(folder)}) + "\n")


if __name__ == "__main__":
    main()
