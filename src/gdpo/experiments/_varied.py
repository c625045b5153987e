"""Arms that differ in more than their estimator: values varied, and what the arms are called.

An arm's name is its estimator, and behind it the values that are its own:
`gdpo length.weight=0.5` of `rewards.length.weight=0.5`.
"""

from collections.abc import Sequence
from itertools import product

from gdpo.errors import ConfigError
from gdpo.recipes.recipe import GateConfig
from gdpo.recipes.yaml import spell_number, split_values

_OWN_OPTIONS = {
    "advantage": "estimators go by --arms",
    "trainer.seed": "seeds go by --seeds",
    "name": "each run has a name of its own",
    "runs_dir": "the folder goes by --output",
}
"""Keys that are not varied by `--vary`, and why."""


def read_variants(vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Every combination of the values of some keys, as `--set` takes them, by its name.

    Args:
        vary: `a.b=1,0.5`, the values being YAML with commas between.

    Raises:
        ConfigError: There is no `=`, no value, no YAML, a value twice, a key twice, or a key that
            an option of its own varies.

    Example:
        >>> list(read_variants(["lora.r=8,16", "trainer.beta=0.0"]))
        ['lora.r=8 trainer.beta=0', 'lora.r=16 trainer.beta=0']
    """
    keys = [text.partition("=")[0].strip() for text in vary]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError(f"--vary names {', '.join(twice)} twice: give all its values in one")
    each = [_assignments(text) for text in vary]
    return {" ".join(map(_briefly, chosen)): chosen for chosen in product(*each)}


def _briefly(assignment: str) -> str:
    """A reward's name says that it is one; its number does not."""
    rest = assignment.removeprefix("rewards.")
    return assignment if rest[:1].isdigit() else rest


def arm_name(estimator: str, variant: str) -> str:
    """What an arm is called: its estimator, and its variant where there is one."""
    return f"{estimator} {variant}".rstrip()


def in_words(value: float | GateConfig | None) -> str:
    """A weight or a gate as `--vary` takes it."""
    if isinstance(value, GateConfig):
        return f"{{on: {value.on}, at_least: {spell_number(value.at_least)}}}"
    return "null" if value is None else spell_number(value)


def estimator_of(arm: str) -> str:
    """The estimator of an arm of this name."""
    return arm.partition(" ")[0]


def _assignments(text: str) -> tuple[str, ...]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (key and equals and values):
        raise ConfigError(f"--vary {text}: write it as key=value,value, as in lora.r=8,16")
    if key in _OWN_OPTIONS:
        raise ConfigError(f"--vary {text}: {_OWN_OPTIONS[key]}")
    written = split_values(values, f"--vary {text}")
    if twice := sorted({value for value in written if written.count(value) > 1}):
        raise ConfigError(f"--vary {text} names {', '.join(twice)} twice")
    return tuple(f"{key}={value}" for value in written)
