"""Recorded batches for the code paths of any framework, and the lines that are told of them."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gdpo import gdpo

PROMPTS = 12
SCALES = np.array([1.0, 0.1, 30.0, 7.0, 1e-3])


class Batch:
    """Rollouts of groups, and what the formula makes of them."""

    def __init__(self, count, *, sizes=(1, 5), missing=False, silent=False):
        rng = np.random.default_rng(0)
        self.sizes = rng.integers(sizes[0], sizes[1] + 1, PROMPTS)
        self.prompts = np.repeat(np.arange(PROMPTS), self.sizes)
        self.names = [f"reward_{k}" for k in range(count)]
        rows = len(self.prompts)
        self.values = rng.integers(0, 4, (rows, count)) * SCALES[:count]
        if silent:
            self.values[:] = np.repeat(rng.random((PROMPTS, count)), self.sizes, axis=0)
        if missing:
            self.values[5, 0] = np.nan
        self.lengths = rng.integers(1, 10, rows)
        self.weights = [1.0, 0.5, 2.0, 1.5, 0.25][:count]

    def expected(self):
        """Of each row."""
        grid = np.full((PROMPTS, self.sizes.max(), len(self.names)), np.nan)
        places = np.concatenate([np.arange(size) for size in self.sizes])
        grid[self.prompts, places] = self.values
        return gdpo(grid, self.weights)[self.prompts, places]

    def rewards(self):
        """Of each row by name; None where one is missing."""
        return [
            {n: None if np.isnan(v) else float(v) for n, v in zip(self.names, row, strict=True)}
            for row in self.values
        ]


def difference(batch, path):
    """The largest, of any row, from the formula."""
    return float(np.abs(np.asarray(path(batch), dtype=np.float64) - batch.expected()).max())


def said(function, *args):
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001  what a framework raises is what is reported
        return f"{type(error).__name__}: {str(error)[:160]}"


def tell(framework, paths, *, package=None, distribution=None, sizes=(1, 5)):
    """One line of JSON per path and number of rewards.

    Args:
        framework: Its name.
        paths: By name, `Batch -> advantage of each row`.
        package: Whose version is told; the commit, where it is a checkout.
        distribution: What package registries call it.
        sizes: Of the groups, where a framework has them all alike.
    """
    for name, path in paths.items():
        for count in (2, 3, 5):
            silent = Batch(count, sizes=sizes, silent=True)
            line = {
                "framework": framework,
                "version": version_of(package or framework, distribution or framework),
                "path": name,
                "rewards": count,
                "difference": said(difference, Batch(count, sizes=sizes), path),
                "with_missing": said(difference, Batch(count, sizes=sizes, missing=True), path),
                "no_signal": said(lambda p=path, b=silent: float(np.abs(p(b)).max())),
            }
            sys.stdout.write(json.dumps(line) + "\n")


def version_of(package, distribution):
    try:
        return version(distribution)
    except PackageNotFoundError:
        folder, *_ = find_spec(package).submodule_search_locations
    command = ["git", "-C", str(Path(folder).parent), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
