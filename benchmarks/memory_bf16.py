"""Prints the resident memory of a training run on a CPU after every step (Linux with glibc).

    python -m benchmarks.memory_bf16 --steps 20
    python -m benchmarks.memory_bf16 --model smollm2-135m --data train.jsonl --tokens 96 --rows 8

A leak, a cache that grows with every new shape, and freed memory that the allocator keeps look the
same in the resident set. So every step prints, in MB: resident memory (RSS), heap memory in use,
heap memory that is free but kept by glibc (`mallinfo2`, which also counts returned pages), and the
highest RSS so far, plus the step's CPU seconds. The tiny policy trains on tool requests. Any
other model trains on GSM8K problems, with rewards that have a gradient from the first step on.
"""

import argparse
import ctypes
import json
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.tool_policy._policy import PolicySettings, make_policy
from benchmarks.tool_policy._tools import tool_rows
from transformers import PrinterCallback, TrainerCallback

from gdpo.integrations.trl import GDPOTrainer
from gdpo.lab.recipes.models import SMOLLM2, convert_smollm2
from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe, RewardConfig
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.training._loop import _dataset
from gdpo.lab.training.preflight import prepare

TINY = "tiny"
MB = 2**20
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def memory():
    """Return `(resident, in use, free, highest resident so far)` in MB."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Heap
    heap = mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resident = pages * resource.getpagesize()
    return tuple(size / MB for size in (resident, heap.uordblks, heap.fordblks, peak))


class Watch(TrainerCallback):
    def on_train_begin(self, *_, **__):
        print(
            f"{'step':>5} {'seconds':>8} {'RSS':>7} {'in use':>7} {'free':>7} {'peak':>7}",
            flush=True,
        )
        self.start = time.process_time()

    def on_step_end(self, _args, state, *_, **__):
        seconds, figures = time.process_time() - self.start, memory()
        shown = " ".join(f"{figure:7.0f}" for figure in figures)
        print(f"{state.global_step:5} {seconds:8.2f} {shown}", flush=True)
        self.start = time.process_time()


def recipe_of(wanted, folder):
    trainer = {
        "max_completion_length": wanted.tokens,
        "max_steps": wanted.steps,
        "learning_rate": 5e-4 if wanted.model == TINY else 2e-5,
        "lr_scheduler_type": "constant",
        "bf16": True,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "save_strategy": "no",
        "seed": 1,
        **{name: json.loads(value) for name, value in wanted.set},
    }
    if wanted.model == TINY:
        model, task, rewards = make_policy(PolicySettings()), "tool_calling", ()
        data = folder / "requests.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in tool_rows(1600, seed=1001)))
    else:
        model = convert_smollm2() if wanted.model == SMOLLM2 else wanted.model
        task, data = "gsm8k", wanted.data
        near = {"low": 20, "high": 40, "width": 40}
        rewards = (RewardConfig(name="format"), RewardConfig(name="token_range", options=near))
    return Recipe(
        task=task,
        model=str(model),
        data=DataConfig(source=str(data)),
        rewards=rewards,
        batch=BatchConfig(
            prompts=wanted.rollouts // wanted.samples,
            samples=wanted.samples,
            micro_batch=wanted.rows or wanted.rollouts,
        ),
        trainer=trainer,
        runs_dir=str(folder),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=TINY, help=f"{TINY}, {SMOLLM2} or a folder")
    parser.add_argument(
        "--data", help="GSM8K's training file, for every model except the tiny one's"
    )
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts per step")
    parser.add_argument("--samples", type=int, default=4, help="rollouts per prompt")
    parser.add_argument("--rows", type=int, help="rollouts per micro-batch. Default: all")
    parser.add_argument("--tokens", type=int, default=100, help="maximum tokens per completion")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=lambda text: text.split("=", 1),
        metavar="NAME=JSON",
        help="set a field of the trainer, for example bf16=false or fast_generation=false",
    )
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(resolve(recipe_of(wanted, Path(folder))), rows=wanted.rollouts)
        trainer = GDPOTrainer(
            model=job.model.source,
            reward_funcs=list(job.rewards),
            args=job.config,
            train_dataset=_dataset(job.problems),
            processing_class=job.tokenizer,
        )
        trainer.add_callback(Watch())  # last, so that it runs after the other callbacks
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
