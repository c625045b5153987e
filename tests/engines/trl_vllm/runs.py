"""Complete trainings of `GDPOTrainer` with vLLM, and evaluations on vLLM, on a CPU.

python -m tests.engines trl-vllm
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.engines.checks import advantage_difference, figures, gdpo, learned, main, means, steps
from tests.engines.servers import free_port, serving

HERE = Path(__file__).parent
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes minutes and needs a C++ compiler
    "VLLM_USE_AOT_COMPILE": "0",
}


def train(folder, policy, *arguments, processes=1, killed=False, **fields):
    """Train, and return what TRL logged at each step."""
    folder.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    given = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
    done = subprocess.run(
        [
            sys.executable,
            *(launcher if processes > 1 else ()),
            HERE / "training.py",
            *(folder, policy, *given, *arguments),
        ],
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.returncode
    return None if killed else json.loads((folder / "log.json").read_text())


def shown(folder, log):
    """Return the figures of a run, and check them."""
    key = "sampling/sampling_logp_difference/mean"
    differences = [each[key] for each in log if key in each]
    return figures(folder / "rollouts", ["digits", "brevity"], by=0.2, differences=differences)


def packing(folder, policy):
    """Packed micro-batches give TRL's loss and gradient under vLLM's importance sampling.

    The learning rate is 0: after an update, rounding to vLLM's bfloat16 would hide a difference.
    """
    fields = {"max_steps": 3, "max_completion_length": 96, "learning_rate": 0.0}
    on, off = (
        train(folder / name, policy, pack_micro_batches=name == "on", **fields)
        for name in ("on", "off")
    )
    for packed, plain in list(zip(on, off, strict=True))[:3]:
        assert packed["completions/min_length"] < 48, packed
        assert packed["sampling/importance_sampling_ratio/max"] > 1, packed
        for key in ("loss", "grad_norm"):
            difference = abs(packed[key] - plain[key])
            assert difference < 1e-4 * plain["grad_norm"], (key, packed, plain)
    return {"advantage_difference": advantage_difference(folder / "on" / "rollouts")}


def filter_groups(folder, policy):
    log = train(folder, policy, filter_groups="advantage_nonzero", max_filter_rounds=2)
    assert all("filter/generated" in each for each in log[:12]), log[0]
    return shown(folder, log)


def evaluation(folder, policy):
    """Evaluation generates with the weights of its step."""
    fields = {"eval_strategy": "steps", "eval_steps": 6, "per_device_eval_batch_size": 8}
    log = train(folder, policy, eval_on_start=True, **fields)
    values = [each["eval_rewards/digits/mean"] for each in log if "eval_loss" in each]
    assert len(values) == 3, log
    assert values[-1] > values[0] + 0.2, values
    return {"component": ["digits in evaluation", values[0], values[-1]]}


def resume(folder, policy):
    """A run that was killed continues from its checkpoint, with its weights in vLLM."""
    fields = {"save_strategy": "steps", "save_steps": 4, "max_steps": 12}
    train(folder, policy, "--die-at", "6", killed=True, **fields)
    assert len(steps(folder / "rollouts")) == 6
    found = shown(folder, train(folder, policy, "--resume", **fields))
    assert len(steps(folder / "rollouts")) == 12
    first, *_, before, after = means(folder / "rollouts", "digits")[:5]
    assert after > (first + before) / 2, "the resumed run sampled from the initial policy"
    return found


def server(folder, policy):
    transfer = ("--weight-transfer-config", '{"backend": "file"}')
    options = ("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1")
    with vllm_serve(folder, policy, *transfer, *options, "--enable-scale-out") as address:
        return shown(
            folder, train(folder, policy, vllm_mode="server", vllm_server_base_url=address)
        )


@contextmanager
def vllm_serve(folder, policy, *options):
    """Run `vllm serve` and yield its address."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", policy, "--host"]
    command += ["127.0.0.1", "--port", str(port), "--enforce-eager", "--max-model-len", "512"]
    command += ["--max-num-seqs", "64", *options]
    log, development = folder / "server.log", {"VLLM_SERVER_DEV_MODE": "1"}
    with serving(command, f"{address}/health", log, development):
        yield address


RECIPE = """
task: gsm8k
model: {policy}
name: tiny
runs_dir: {folder}/runs
data: {{source: {folder}/rows.jsonl, max_prompt_length: 400}}
rewards:
  - {{name: correctness, weight: 1.0}}
  - {{name: "tests.engines.rewards:digits", weight: 1.0}}
  - {{name: "tests.engines.rewards:brevity", weight: 0.5}}
batch: {{prompts: 8, samples: 4, micro_batch: 8}}
trainer:
  use_vllm: true
  vllm_mode: colocate
  vllm_max_model_length: 512
  max_completion_length: 16
  learning_rate: 3e-3
  lr_scheduler_type: constant
  max_steps: 12
  gradient_checkpointing: false
"""


def recipe(folder, policy):
    """`gdpo train` with vLLM, then `gdpo evaluate` of its model on vLLM in both ways."""
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(32)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "recipe.yaml").write_text(RECIPE.format(policy=policy, folder=folder))
    gdpo("train", folder / "recipe.yaml")
    run = folder / "runs" / "tiny"
    problems = ("--benchmarks", "gsm8k", "--data", f"gsm8k={folder / 'rows.jsonl'}")
    problems += ("--rows", "8", "--max-tokens", "16")
    options = ("--engine", "vllm", "--max-model-len", "512", "--enforce-eager")
    gdpo("evaluate", run, *problems, *options)
    with vllm_serve(folder, run / "model", "--served-model-name", "tiny") as address:
        place = ("--server", f"{address}/v1", "--output", folder / "by_server")
        gdpo("evaluate", "tiny", *problems, *place)
    results = [
        json.loads((each / "results.json").read_text())
        for each in (run / "evaluation", folder / "by_server")
    ]
    assert [each[0]["problems"] for each in results] == [8, 8]
    return {
        "advantage_difference": advantage_difference(run / "rollouts"),
        "component": learned(run / "rollouts", "digits", by=0.2),
    }


RUNS = {
    "colocate": lambda folder, policy: shown(folder, train(folder, policy)),
    "server": server,
    "two-processes": lambda folder, policy: shown(
        folder, train(folder, policy, processes=2, gradient_accumulation_steps=2)
    ),
    "packing": packing,
    "filter-groups": filter_groups,
    "evaluation": evaluation,
    "resume": resume,
    "recipe": recipe,
}

if __name__ == "__main__":
    main(RUNS, ["trl", "vllm", "transformers", "torch"])
