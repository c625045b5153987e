"""Reads YAML and stores the line of each value, so that later errors can name the file and line.

As in the core schema of YAML 1.2, `1e-6` is a number, and `no`, `on` and `off` are strings, unlike
in YAML 1.1, which PyYAML follows. A repeated key is an error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from gdpo.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Path to a value: `("rewards", 0, "weight")`."""

_SHOWN = 60
"""Maximum number of characters of an override that a message shows."""

_DIGITS = 1000
"""Maximum number of characters in an integer. Python cannot convert much longer numbers."""

_DEPTH = 100
"""Maximum nesting depth of lists and mappings."""

_VALUES = 100_000
"""Maximum number of values in a document after its aliases are expanded, which could fill the
memory."""

_TAG = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """Reads YAML like PyYAML, but plain text as YAML 1.2 defines it."""


_CoreLoader.yaml_implicit_resolvers = {}


class _QuotingDumper(yaml.SafeDumper):
    """Writes YAML like PyYAML, but also quotes text that would be a number in YAML 1.2."""


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    for _class in (_CoreLoader, _QuotingDumper):
        _class.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)


def _represent_text(dumper: _QuotingDumper, text: str) -> yaml.ScalarNode:
    """Write non-printable text in double quotes, so that line separators are escaped."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_QuotingDumper.add_representer(str, _represent_text)


_TOO_DEEP = f"lists and mappings are nested more than {_DEPTH} deep. Use fewer levels"


@dataclass(frozen=True, slots=True)
class Document:
    """Stores the content of a file after overrides, and where each value was set."""

    source: str
    """Name of the file in messages."""
    data: dict[str, Any]
    places: Mapping[KeyPath, str]
    """Maps each key path to the location of its value, such as `recipe.yaml:12` or
    `--set model=...`."""

    def place(self, path: Sequence[str | int]) -> str:
        """Return where the value at this path, or its innermost known container, was set."""
        for length in range(len(path), 0, -1):
            if (place := self.places.get(tuple(path[:length]))) is not None:
                return place
        return self.source


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path in the notation of `--set`, such as `rewards.0.weight`."""
    return ".".join(str(part) for part in path)


def read_yaml(path: Path) -> Document:
    """Read a YAML file that contains a mapping.

    Raises:
        ConfigError: If the file does not exist, is not UTF-8 text or valid YAML, is empty, does not
            contain a mapping, or repeats a key.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}. Check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}") from error
    node = _compose(text, str(path))
    if node is None:
        raise ConfigError(f"{path} is empty. A recipe needs at least task, model and data")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{path}:{node.start_mark.line + 1}: a recipe must be a mapping (lines of `key: "
            f"value`), not a {'list' if isinstance(node, yaml.SequenceNode) else 'single value'}"
        )
    places: dict[KeyPath, str] = {}
    data = _Builder(str(path), places).build(node, ())
    return Document(str(path), data, places)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML text from which `read_yaml` reads the same values."""
    return yaml.dump(
        dict(data), Dumper=_QuotingDumper, sort_keys=False, allow_unicode=True, width=100
    )


def override(document: Document, assignment: str, place: str | None = None) -> Document:
    """Return the document with one value replaced or added.

    An assignment is `a.b=value`, or `rewards.0.weight=2` for an entry of a list. The value is YAML,
    and empty means null. Messages show `place`, by default `--set` and the assignment.

    Raises:
        ConfigError: If `=` is missing, the value is not valid YAML, or a container in the path is
            neither a mapping nor a list.
    """
    place = place or override_place(assignment)
    target, equals, text = assignment.partition("=")
    if not equals or not target.strip():
        raise ConfigError(f"{place}: write it as key=value, as in trainer.learning_rate=1e-6")
    keys = target.strip().split(".")
    places = dict(document.places)
    data = deepcopy(document.data)
    container: Any = data
    path: KeyPath = ()
    for key in keys[:-1]:
        step = _index(container, key, path, place)
        if isinstance(container, dict) and container.get(step) is None:
            container[step] = {}
        path, container = (*path, step), container[step]
    last = _index(container, keys[-1], path, place)
    path = (*path, last)
    for inner in [known for known in places if known[: len(path)] == path]:
        del places[inner]
    node = _compose(text, place)
    container[last] = None if node is None else _Builder(place, places).build(node, path)
    for length in range(1, len(path) + 1):
        places.setdefault(path[:length], place)
    return Document(document.source, data, places)


def split_values(text: str, source: str) -> list[str]:
    """Split a comma-separated list of YAML values into their texts. `0.50` becomes `0.5`.

    Examples:
        >>> split_values("1.0,0.50, {on: correctness, at_least: 1}", "--vary")
        ['1', '0.5', '{on: correctness, at_least: 1}']
    """
    bracketed = f"[{text}]"
    node = _compose(bracketed, source)
    assert isinstance(node, yaml.SequenceNode), "brackets make a list"
    values = [_Builder(source, {}).build(item, ()) for item in node.value]
    texts = [bracketed[n.start_mark.index : n.end_mark.index].strip() for n in node.value]
    return [
        spell_number(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        else text
        for value, text in zip(values, texts, strict=True)
    ]


def spell_number(value: float) -> str:
    """Return the shortest text for a finite number, such as `1` for `1.0`."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def override_place(assignment: str, option: str = "--set") -> str:
    """Return the text that refers to an override in messages."""
    return f"{option} {assignment if len(assignment) <= _SHOWN else assignment[:_SHOWN] + '…'}"


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, _CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = source if mark is None or source.startswith("--") else f"{source}:{mark.line + 1}"
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: {_TOO_DEEP}") from error


@dataclass(frozen=True, slots=True)
class _Builder:
    """Converts YAML nodes to Python values and stores the location of each value."""

    source: str
    places: dict[KeyPath, str]

    def build(self, node: yaml.Node, path: KeyPath, around: tuple[int, ...] = ()) -> Any:
        if id(node) in around:
            raise ConfigError(f"{self.place(node)}: {dotted(path)} contains itself")
        if len(around) > _DEPTH:
            raise ConfigError(f"{self.place(node)}: {_TOO_DEEP}")
        inside = (*around, id(node))
        if path:
            self.places.setdefault(path, self.place(node))
        if len(self.places) > _VALUES:
            raise ConfigError(
                f"{self.place(node)}: the document has more than {_VALUES:,} values after its "
                "aliases (*name) are expanded. Replace aliases with their values, and remove "
                "repetitions"
            )
        if isinstance(node, yaml.MappingNode):
            return {
                key: self.build(value, (*path, key), inside)
                for key, value in self.pairs(node, path)
            }
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), inside) for i, item in enumerate(node.value)]
        return self.scalar(node)

    def pairs(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[str, str] = {}
        for key_node, value in node.value:
            key: Any = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            place = self.place(key_node)
            if not isinstance(key, str):
                raise ConfigError(f"{place}: a key must be a string, not {key_node.value!r}")
            if key in seen:
                raise ConfigError(
                    f"{place}: {dotted((*path, key))} is set twice, first at {seen[key]}. "
                    "Remove one"
                )
            seen[key] = place
            self.places[(*path, key)] = place
            yield key, value

    def scalar(self, node: yaml.Node) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            if len(text) > _DIGITS:
                raise ConfigError(
                    f"{self.place(node)}: an integer has {len(text):,} characters. At most "
                    f"{_DIGITS:,} are allowed"
                )
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if kind == "float":
            return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        raise ConfigError(
            f"{self.place(node)}: the tag {node.tag} is not allowed. Write the value without a tag"
        )

    def place(self, node: yaml.Node) -> str:
        in_file = not self.source.startswith("--")
        return f"{self.source}:{node.start_mark.line + 1}" if in_file else self.source


def _index(container: Any, key: str, path: KeyPath, place: str) -> str | int:
    """Return the key for this container. For a list, the key is an index."""
    if isinstance(container, dict):
        return key
    if not isinstance(container, list):
        raise ConfigError(
            f"{place}: {dotted(path)} is {container!r}, which has no keys. Set {dotted(path)} "
            "itself"
        )
    length = len(container)
    if not key.isdigit() or int(key) >= length:
        allowed = f"Use a number from 0 to {length - 1}" if length else "The list is empty"
        raise ConfigError(
            f"{place}: {dotted(path)} is a list, and {key!r} is not a valid position. {allowed}"
        )
    return int(key)
