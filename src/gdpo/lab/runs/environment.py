"""Describes the environment of a run, to help reproduce the run or explain differences."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gdpo

_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "verl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "numpy",
    "pyarrow",
    "vllm",
    "deepspeed",
)


def describe_environment(processes: int, seed: int) -> dict[str, Any]:
    """Return versions, machine, device, seed, command and commit. Missing packages are left out."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {
        "started": now(),
        "command": shlex.join(sys.argv),
        "gdpo": gdpo.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "device": _device(),
        "processes": processes,
        "seed": seed,
        "git": None if commit is None else {"commit": commit, "changed": bool(changes)},
    }


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {
            "type": "cuda",
            "name": torch.cuda.get_device_name(),
            "visible": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    accelerator = torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else "cpu"
    return {"type": kind, "threads": torch.get_num_threads()}


def _git(*arguments: str) -> str | None:
    """Return what git prints about the working directory, or None without a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
