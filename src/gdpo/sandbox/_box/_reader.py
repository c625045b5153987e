"""Builds values from messages, and nothing but exact builtin types and the classes it was given.

Whatever a message says, the result is one of these or an Exception: a ValueError where it is no
message, and what hashing and allocating raise.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from types import MemberDescriptorType
from typing import Any

from ._writer import DEEPEST, PLAIN, TYPES

_UNBUILT = object()
_LONGEST_FRACTION = 10_000

_EMPTY: dict[str, Callable[[], Any]] = {
    "l": list, "q": deque, "s": set, "d": dict, "n": list, "k": dict, "v": dict, "i": dict,
}  # fmt: skip
_VIEWS: dict[str, Callable[[Any], Any]] = {
    "n": iter, "k": dict.keys, "v": dict.values, "i": dict.items,
}  # fmt: skip
"""What is not made of its items itself, but of a list or dict of them."""


class Reader:
    """Turns messages into values.

    Args:
        classes: The classes of objects that travel as their attributes, by name.
        opaque: Gives what stands for an object that did not travel, by its number.
    """

    def __init__(self, classes: Mapping[str, type], opaque: Callable[[int], Any]) -> None:
        self._classes = classes
        self._opaque = opaque

    def read(self, message: Any, known: Sequence[Any] = ()) -> Any:
        """The value of a message; afterwards, `objects` are those of its heap.

        Args:
            message: What a `Writer` wrote, or what somebody made up.
            known: Objects that have the first indices of the heap. Those that can be are changed in
                place to what the message says.

        Raises:
            ValueError: It is no message.
            Exception: What hashing and allocating raise.
        """
        root, heap = _list(message, 2)
        records = [_record(record) for record in _list(heap)]
        self.objects: list[Any] = []
        self._inner: list[Any] = []
        for i, (tag, items) in enumerate(records):
            self._add_shell(tag, items, known[i] if i < len(known) else None)
        self._depth: dict[int, int] = {}
        for i, (tag, items) in enumerate(records):
            if tag in ("t", "f"):
                self._build(i, tag, items)
        # Sets and dicts come last: hashing may look at what the others hold.
        for last in (False, True):
            for inner, (tag, items) in zip(self._inner, records, strict=True):
                if inner is not _UNBUILT and (tag in "sdkvi") is last:
                    self._fill(inner, tag, items)
        return self._value(root)

    def _add_shell(self, tag: str, items: list[Any], known: Any) -> None:
        inner: Any = _UNBUILT
        if tag in ("t", "f"):
            pass
        elif tag == "o":
            inner = object.__new__(self._classes[as_text(items[0])])
        elif tag in _EMPTY:
            inner = _EMPTY[tag]()
        else:
            raise ValueError(f"an unknown record {tag!r}")
        if tag in "lqsdo" and type(known) is type(inner):
            inner = known
        self._inner.append(inner)
        self.objects.append(_VIEWS[tag](inner) if tag in _VIEWS else inner)

    def _build(self, i: int, tag: str, items: list[Any]) -> None:
        inside = [self._depth.get(x[1], 0) for x in items if type(x) is list and x[0] == "#"]
        self._depth[i] = 1 + max(inside, default=0)
        if self._depth[i] > DEEPEST + 1:
            raise ValueError(f"tuples are nested more than {DEEPEST} deep")
        values = self._values(items)
        self.objects[i] = tuple(values) if tag == "t" else frozenset(values)

    def _fill(self, inner: Any, tag: str, items: list[Any]) -> None:
        values = self._values(items)
        if tag == "o":
            for name, value in _pairs(values[1:]):
                object.__setattr__(inner, _attribute(type(inner), name), value)
            return
        inner.clear()
        if tag in "lqn":
            inner.extend(values)
        elif tag == "s":
            inner.update(values)
        else:
            inner.update(_pairs(values))

    def _values(self, items: list[Any]) -> list[Any]:
        return items if set(map(type, items)) <= _AS_IT_IS else [self._value(x) for x in items]

    def _value(self, x: Any) -> Any:
        if type(x) in _AS_IT_IS:
            return x
        tag, *parts = _list(x)
        if tag == "#":
            return self._object(_index(parts[0]))
        if tag == "h":
            return self._opaque(_index(parts[0]))
        return _SCALARS[as_text(tag)](*parts)

    def _object(self, i: int) -> Any:
        x = self.objects[i]
        if x is _UNBUILT:
            raise ValueError("a tuple comes before its items")
        return x


_AS_IT_IS = PLAIN | {int}


def _list(x: Any, length: int | None = None) -> list[Any]:
    if type(x) is not list or (length is not None and len(x) != length):
        raise ValueError("no list, or one of a wrong length")
    return x


def _record(x: Any) -> tuple[str, list[Any]]:
    tag, items = _list(x, 2)
    return as_text(tag), _list(items)


def as_text(x: Any) -> str:
    """A text, or a ValueError."""
    if type(x) is not str:
        raise ValueError("no text")
    return x


def _index(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError("no index")
    return x


def _attribute(cls: type, name: Any) -> str:
    """A name that objects of a class have for a value: in a method's place it would be believed."""
    if not as_text(name).isidentifier() or name.startswith("__"):
        raise ValueError("no attribute that may be set")
    own = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if hasattr(own, "__get__") and not isinstance(own, MemberDescriptorType):
        raise ValueError("an attribute in the place of a method")
    return name


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def _integer(text: Any) -> int:
    return int(as_text(text), 16)


def _fraction(*parts: Any) -> Fraction:
    # Reducing a fraction takes quadratic time.
    if any(len(as_text(part)) > _LONGEST_FRACTION for part in parts):
        raise ValueError("a fraction of too many digits")
    return Fraction(*map(_integer, parts))


_SCALARS: dict[str, Callable[..., Any]] = {
    "I": _integer,
    "c": complex,
    "b": lambda text: as_text(text).encode("latin-1"),
    "B": lambda text: bytearray(as_text(text), "latin-1"),
    "r": lambda *parts: range(*map(_integer, parts)),
    "D": lambda text: Decimal(as_text(text)),
    "F": _fraction,
    "T": lambda name: TYPES[as_text(name)],
    "...": lambda: ...,
}
