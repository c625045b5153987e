"""Stand-ins for frameworks' modules, and the advantages that every adapter must give."""

import sys
from types import ModuleType

import numpy as np

from gdpo import gdpo
from gdpo.advantages import RunningScale

NAMES, WEIGHTS = ["correct", "format"], [1.0, 0.5]


def install(monkeypatch, **contents):
    """Install empty modules with these contents by dotted name, and return all by name."""
    made = {}
    for name in contents:
        parts = name.split(".")
        for i in range(len(parts)):
            dotted = ".".join(parts[: i + 1])
            made.setdefault(dotted, ModuleType(dotted))
            if i:
                setattr(made[".".join(parts[:i])], parts[i], made[dotted])
    for name, module in made.items():
        vars(module).update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    return made


def registering(registry):
    """Return the decorator with which a framework keeps functions by name."""
    return lambda name: lambda function: registry.setdefault(name, function)


def scored(*shape):
    """Return random values of two rewards."""
    return np.random.default_rng(0).random((*shape, 2))


def grid(values, sizes, fill=np.nan):
    """Return the values of rows as [prompt, sample, ...], filled up to the longest group."""
    padded = np.full((len(sizes), max(sizes), *values.shape[1:]), fill)
    for prompt, group in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
        padded[prompt, : len(group)] = group
    return padded


def by_formula(rewards, sizes, weights=WEIGHTS, formula=gdpo, **options):
    """Return the advantage of each row of consecutive groups."""
    advantages = formula(grid(rewards, sizes), weights, **options)
    return np.concatenate([a[:size] for a, size in zip(advantages, sizes, strict=True)])


def one_by_one(groups, weights=WEIGHTS):
    """Yield each group with its advantages and the state if a running scale is shared."""
    scale = RunningScale(128)
    for group in groups:
        scale.update(group[None], weights)
        yield group, gdpo(group[None], weights, scale=scale.value)[0], scale.state()
