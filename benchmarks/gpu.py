"""Runs what only a GPU can show, within twelve minutes, the most valuable part first.

    python -m benchmarks.gpu [--rows ROWS] [--only PARTS] [--rehearse]

Each part has a limit in seconds. Its complete output is printed and kept in runs/gpu/PART.txt, also
if it is stopped. Without a GPU, it prints the list and exits with 1, or with --rehearse runs each
part with small sizes on the CPU. ROWS is rlla_sft.json.gz, ToolRL's 400 supervised rows; without
it, the part that trains SmolLM2-135M-Instruct (the extra `smollm2`) is left out.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
FOLDER = Path("runs/gpu")
PYTHON = sys.executable


@dataclass(frozen=True)
class Part:
    """Describes one part of the list."""

    shows: str
    command: tuple[str, ...]
    small: tuple[str, ...] = ()
    """Further arguments for a rehearsal on the CPU."""
    seconds: int = 0


def set_to(*values):
    return tuple(argument for value in values for argument in ("--set", value))


def parts(rows, folder=FOLDER):
    """Return the list, the most valuable part first. Runs are written to the folder."""
    against = (PYTHON, "-m", "benchmarks.against_trl", "training")
    small = ("--rounds", "1", "--only", "one group in one")
    prepared = folder / "prepared"
    vllm = ("use_vllm=true", "vllm_mode=colocate") if find_spec("vllm") else ("use_vllm=false",)
    values = (
        *(f"model={prepared / 'policy'}", f"data.source={prepared / 'train.jsonl'}"),
        *("data.max_prompt_length=1536", "batch.prompts=16", "batch.rollouts_per_step=64"),
        *("trainer.max_completion_length=128", "trainer.gradient_checkpointing=false"),
        *("trainer.learning_rate=1e-5", "trainer.max_steps=60"),
        *(f"trainer.{value}" for value in vllm),
    )
    todo = {
        "tests": Part(
            "the advantages stay on the device; flat rows and packing have TRL's gradient",
            (PYTHON, "-m", "pytest", "-q", "-m", "gpu", "tests/advantages", "tests/integrations"),
            seconds=90,
        ),
        "speed": Part(
            "an optimizer step against TRL's: seconds and peak memory",
            (*against, "--rounds", "2", "--only", "tool calling, shape"),
            small,
            220,
        ),
    }
    if rows:
        todo["warm start"] = Part(
            "SmolLM2-135M-Instruct writes some tool calls with tags",
            (PYTHON, "-m", "benchmarks.tool_calling_policy", str(rows), str(prepared)),
            ("--limit", "4"),
            120,
        )
        todo["training"] = Part(
            "60 steps of the recipe tool_calling with GRPO and GDPO, side by side",
            (
                *(PYTHON, "-m", "gdpo", "compare", "recipes/tool_calling", "--seeds", "1"),
                *("--jobs", "2", "--output", str(folder / "tool_calling")),
                *set_to(*values),
            ),
            set_to(
                *("trainer.max_steps=2", "trainer.max_completion_length=8"),
                *("trainer.use_cpu=true", "trainer.bf16=false"),
                *("batch.prompts=2", "batch.rollouts_per_step=8", "batch.micro_batch=4"),
            ),
            250,
        )
    return todo


def run(name, part, *, small):
    """Run a part, and print and keep what it prints. Return its result."""
    started = time.monotonic()
    kept = ROOT / FOLDER / f"{name}.txt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("w") as out:
        process = subprocess.Popen(
            [*part.command, *(part.small if small else ())],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            result = f"exit {process.wait(None if small else part.seconds)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            result = f"stopped after {part.seconds} s"
    sys.stdout.write(kept.read_text(errors="replace"))
    return result, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, help="ToolRL's supervised rows")
    parser.add_argument("--only", nargs="+", default=[], help="names of parts. Default: all")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on the CPU")
    options = parser.parse_args()
    todo = parts(options.rows)
    if unknown := sorted(set(options.only) - set(todo)):
        parser.error(f"unknown part: {', '.join(unknown)}. Allowed: {', '.join(todo)}")
    if not (options.rehearse or torch.cuda.is_available()):
        shown = "".join(
            f"- {name}, up to {part.seconds} s: {part.shows}\n" for name, part in todo.items()
        )
        sys.exit(f"torch finds no GPU here. With a GPU, this command shows:\n{shown}")
    where = "the CPU" if options.rehearse else torch.cuda.get_device_name()
    table = f"\n{where}, torch {torch.__version__}\n\n| part | result | s |\n|---|---|---|\n"
    failed = False
    for name in options.only or todo:
        sys.stdout.write(f"\n== {name}: {todo[name].shows}\n")
        sys.stdout.flush()
        result, seconds = run(name, todo[name], small=options.rehearse)
        failed |= result != "exit 0"
        table += f"| {name} | {result} | {seconds:.0f} |\n"
    sys.stdout.write(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
