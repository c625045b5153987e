"""Measures the seconds of variants in alternation, and the peak memory of each.

On a CPU: CPU seconds and resident memory. On a GPU: wall-clock seconds and allocated GPU memory.
"""

import contextlib
import gc
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig

THEIRS, LIMIT = "TRL", "limit"

ON_GPU = torch.cuda.is_available()

NEWER = {
    name: False for name in ("activation_checkpointing",) if name in GRPOConfig.__dataclass_fields__
}
"""Of gradient checkpointing, the field that newer releases of transformers have."""


@dataclass(frozen=True)
class Part:
    """Describes one table.

    Args:
        title: The name of the measurement.
        unit: The work that the seconds refer to.
        settings: The settings, by their names in the table.
        variants: TRL, then the other variants. Without --every-variant, only TRL and the last one.
        prepare: Prepares a variant in a folder: `(variant, setting, folder) -> work`. The work
            returns its seconds.
    """

    title: str
    unit: str
    settings: Mapping[str, Any]
    variants: tuple[str, ...]
    prepare: Callable[[str, Any, str], Callable[[], float]]


def now():
    """Return CPU seconds, or on a GPU wall-clock seconds after its queue is empty."""
    if not ON_GPU:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


class Clock(TrainerCallback):
    """Records the seconds of each optimizer step, generation included."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.start = now()

    def on_step_end(self, *_, **__):
        self.seconds.append(now() - self.start)


def quiet():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def free():
    """Return the memory of earlier trainers to the GPU, and forget their peak."""
    gc.collect()  # a trainer holds its optimizer in a cycle
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def once(part, variant, name):
    free()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return part.prepare(variant, part.settings[name], folder)()


def compare(part, name, variants, rounds):
    """Yield one table row per variant."""
    seconds, peaks = {variant: [] for variant in variants}, {}
    for i in range(rounds):
        for variant in variants if i % 2 == 0 else reversed(variants):
            seconds[variant].append(once(part, variant, name))
            if ON_GPU:
                peaks[variant] = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}"
    for variant in variants:
        ratios = np.array(seconds[THEIRS]) / seconds[variant]
        to_limit = np.array(seconds[variant]) / seconds.get(LIMIT, np.nan)
        yield {
            "setting": name,
            "variant": variant,
            "wall s" if ON_GPU else "CPU s": f"{np.median(seconds[variant]):.3g}",
            "TRL / it": f"{np.median(ratios):.2f}",
            "95 % interval": ""
            if variant == THEIRS
            else "{:.2f} to {:.2f}".format(*interval(ratios)),
            "it / limit": f"{np.median(to_limit):.2f}" if LIMIT in seconds else "",
            "peak memory, MB": peaks.get(variant) or peak_apart(part, variant, name),
        }


def interval(ratios):
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    return np.quantile(np.median(draws, axis=1), [0.025, 0.975])


def resident(field):
    """Return a field of /proc/self/status in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def peak(part, variant, name):
    """Return in MB the resident memory that the work adds at its peak."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        work = part.prepare(variant, part.settings[name], folder)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        work()
        return resident("VmHWM") - before


def peak_apart(part, variant, name):
    if not Path("/proc/self/clear_refs").exists():
        return ""
    command = [sys.executable, "-m", "benchmarks.against_trl", part.title, "--peak-of", variant]
    done = subprocess.run([*command, "--only", name], capture_output=True, text=True)
    if done.returncode < 0:  # the system ended it, usually because memory ran out
        return f"not measured (signal {-done.returncode})"
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return f"{json.loads(done.stdout.splitlines()[-1]):.0f}"
