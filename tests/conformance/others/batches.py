"""Provides batches for the code paths of every framework, and prints the results."""

import json
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gdpo import gdpo
from gdpo.advantages import RunningScale

PROMPTS = 12
HALF_LIFE = {"scale_half_life": 128}
"""Options of the paths that hand over one group at a time."""

ONE_BY_ONE = "one group at a time"
"""Paths with this in their name are compared with GDPO with a running scale."""

SCALES = np.array([1.0, 0.1, 30.0, 7.0, 1e-3])


class Batch:
    """Stores groups of rollouts, and the formula's advantages."""

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
        """Return the expected advantage of each row."""
        grid = np.full((PROMPTS, self.sizes.max(), len(self.names)), np.nan)
        places = np.concatenate([np.arange(size) for size in self.sizes])
        grid[self.prompts, places] = self.values
        return gdpo(grid, self.weights)[self.prompts, places]

    def expected_one_by_one(self):
        """Return the expected advantage of each row if the groups arrive one at a time."""
        scale, found = RunningScale(), []
        for prompt in range(PROMPTS):
            group = self.values[None, self.prompts == prompt]
            scale.update(group, self.weights)
            found.append(gdpo(group, self.weights, scale=scale.value)[0])
        return np.concatenate(found)

    def rewards(self):
        """Return the rewards of each row by name; None for a missing one."""
        return [
            {n: None if np.isnan(v) else float(v) for n, v in zip(self.names, row, strict=True)}
            for row in self.values
        ]


def difference(batch, path, *, expected=Batch.expected):
    """Return the largest difference from the formula."""
    return float(np.abs(np.asarray(path(batch), dtype=np.float64) - expected(batch)).max())


def result_of(function, *args):
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001  what a framework raises is what is reported
        return f"{type(error).__name__}: {str(error)[:160]}"


def print_lines(framework, paths, *, package=None, distribution=None, sizes=(1, 5)):
    """Print one line of JSON per path and number of rewards.

    Args:
        framework: The framework's name.
        paths: Functions `Batch -> advantage of each row`, by name.
        package: The package whose version (or commit, for a checkout) is printed.
        distribution: The package's name in package registries.
        sizes: Minimum and maximum size of the groups.
    """
    for name, path in paths.items():
        one_by_one = ONE_BY_ONE in name
        compared = partial(
            difference, expected=Batch.expected_one_by_one if one_by_one else Batch.expected
        )
        for count in (2, 3, 5):
            silent = Batch(count, sizes=sizes, silent=True)
            line = {
                "framework": framework,
                "version": version_of(package or framework, distribution or framework),
                "path": name,
                "rewards": count,
                "difference": result_of(compared, Batch(count, sizes=sizes), path),
                "with_missing": result_of(compared, Batch(count, sizes=sizes, missing=True), path),
                "no_signal": result_of(lambda p=path, b=silent: float(np.abs(p(b)).max())),
            }
            sys.stdout.write(json.dumps(line) + "\n")


def version_of(package, distribution):
    try:
        return version(distribution)
    except PackageNotFoundError:
        folder, *_ = find_spec(package).submodule_search_locations
    command = ["git", "-C", str(Path(folder).parent), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
