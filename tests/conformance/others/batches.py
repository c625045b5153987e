"""Provides batches for the code paths of every framework, and prints the results."""

import json
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gdpo import gdpo
from gdpo.advantages import RunningScale

PROMPTS, LONGEST = 12, 9
HALF_LIFE = {"scale_half_life": 128}
"""Options of the paths that hand over one group at a time."""

ONE_BY_ONE = "one group at a time"
"""Paths with this in their name are compared with GDPO with a running scale."""

SCALES = np.array([1.0, 0.1, 30.0, 7.0, 1e-3])


class Batch:
    """Stores groups of rollouts, an order to pass them in, and the formula's advantages."""

    def __init__(self, count, *, sizes=(1, 5), lengths=(1, LONGEST), missing=False, silent=False):
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
        self.lengths = rng.integers(lengths[0], lengths[1] + 1, rows)
        self.weights = [1.0, 0.5, 2.0, 1.5, 0.25][:count]
        self.order = rng.permutation(rows)

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


def difference_of_groups(batch, path):
    """Return the same where one group arrives at a time."""
    return difference(batch, path, expected=Batch.expected_one_by_one)


def result_of(function, *args):
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001  what a framework raises is what is reported
        return f"{type(error).__name__}: {str(error)[:160]}"


CASES = {"difference": {}, "with_missing": {"missing": True}, "no_signal": {"silent": True}}


def print_lines(
    framework, paths, *, version=None, made=Batch, compared=None, more=dict, sizes=(1, 5)
):
    """Print one line of JSON per path and number of rewards.

    Args:
        framework: The framework's name.
        paths: Functions of a batch, by name.
        version: The framework's version. Default: that of its distribution or checkout.
        made: Class of the batches.
        compared: Function `(batch, path) -> difference from the formula`. Default: `difference`, or
            `difference_of_groups` if the path's name says so.
        more: Function that returns more fields of the line.
        sizes: Minimum and maximum size of the groups.
    """
    version = version or version_of(framework)
    for name, path in paths.items():
        of_name = difference_of_groups if ONE_BY_ONE in name else difference
        for count in (2, 3, 5):
            line = {"framework": framework, "version": version, "path": name, "rewards": count}
            for key, case in CASES.items():
                batch = made(count, sizes=sizes, **case)
                line[key] = result_of(compared or of_name, batch, path)
            # Frameworks print to sys.stdout, which some scripts redirect.
            sys.__stdout__.write(json.dumps({**line, **more()}) + "\n")


def version_of(package, distribution=None):
    try:
        return metadata.version(distribution or package)
    except metadata.PackageNotFoundError:
        folder, *_ = find_spec(package).submodule_search_locations
    command = ["git", "-C", str(Path(folder).parent), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
