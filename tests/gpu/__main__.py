"""Runs what only a GPU can show, each item with a time limit, and prints a table.

    python -m tests.gpu [--model MODEL] [--data ROWS] [--only TESTS]

Without a GPU it prints the list and exits with 1. MODEL is an instruction-tuned model (a folder or
a name on the Hub), ROWS is a file with ToolRL's training rows. Runs are written to runs/gpu.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
from tests.environments import ROOT, last_line

FOLDER = "runs/gpu"


@dataclass(frozen=True)
class Item:
    """Describes one item of the list."""

    shows: str
    command: tuple[str, ...]
    minutes: int


def items(model, data):
    """Return the list, the most valuable item first."""
    gdpo = (sys.executable, "-m", "gdpo")
    recipe = ("--set", f"model={model}", "--set", f"data.source={data}")
    sixty_steps = ("--set", "trainer.max_steps=60")
    bfcl = ("--benchmarks", "bfcl_toolrl_simple_python", "--temperature", "0.001")
    before, compared = f"{FOLDER}/before", f"{FOLDER}/tool_calling"
    after = {
        f"after {name}": Item(
            f"BFCL after 60 steps of {name}",
            (*gdpo, "evaluate", f"{compared}/{name}-seed-1", *bfcl, "--baseline", before),
            10,
        )
        for name in ("grpo", "gdpo")
    }
    return {
        "tests": Item(
            "packed micro-batches have TRL's gradient in bfloat16 on CUDA",
            (sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"),
            10,
        ),
        "before": Item(
            "BFCL of the initial model",
            (*gdpo, "evaluate", model, *bfcl, "--output", before),
            10,
        ),
        "tool_calling": Item(
            "60 steps of the recipe tool_calling with GRPO and GDPO, with vLLM in colocate mode",
            (
                *(*gdpo, "compare", "recipes/tool_calling", "--seeds", "1", "--output", compared),
                *(*recipe, *sixty_steps, "--set", "trainer.vllm_mode=colocate"),
            ),
            120,
        ),
        **after,
        "speed": Item(
            "training phase against TRL's: seconds and peak memory, random Qwen2.5-1.5B, bfloat16",
            (sys.executable, "-m", "benchmarks.against_trl", "training", "--rounds", "3"),
            40,
        ),
        "verl": Item(
            "a complete verl run of a recipe on one GPU",
            (
                *(*gdpo, "launch", "verl", "recipes/tool_calling", "--gpus", "1", *recipe),
                *(*sixty_steps, "--set", f"runs_dir={FOLDER}/verl"),
            ),
            60,
        ),
    }


def run(item):
    """Run an item. Return its row: exit code, seconds, last line of its output."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            item.command,
            cwd=ROOT,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * item.minutes,
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {item.minutes} minutes", 60 * item.minutes, ""
    return f"exit {done.returncode}", time.monotonic() - started, last_line(done.stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="model to train")
    parser.add_argument("--data", default="RamAnanth1/toolrl-rlla4k", help="ToolRL's rows")
    parser.add_argument("--only", nargs="+", default=[], help="names of items. Default: all")
    options = parser.parse_args()
    todo = items(options.model, options.data)
    if unknown := sorted(set(options.only) - set(todo)):
        parser.error(f"unknown item: {', '.join(unknown)}. Allowed: {', '.join(todo)}")
    if not torch.cuda.is_available():
        shown = "".join(f"- {name}: {item.shows}\n" for name, item in todo.items())
        sys.exit(f"torch finds no GPU here. With a GPU, this command shows:\n{shown}")
    card = torch.cuda.get_device_name()
    sys.stdout.write(f"{card}, torch {torch.__version__}\n\n| item | result | s | output |\n")
    sys.stdout.write("|---|---|---|---|\n")
    failed = False
    for name, item in todo.items():
        if name in (options.only or todo):
            result, seconds, output = run(item)
            failed |= result != "exit 0"
            sys.stdout.write(f"| {name}: {item.shows} | {result} | {seconds:.0f} | {output} |\n")
            sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
