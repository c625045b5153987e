"""Builds values from messages. All values have exact builtin types or are objects of known classes.

Any invalid message, even a forged one, causes an exception: a ValueError for a malformed message,
or an error in hashing or memory allocation.
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
"""Types whose values are built from a list or a dict of items."""


class Reader:
    """Converts messages to values.

    Args:
        classes: Classes whose objects are sent as a list of attributes, keyed by name.
        opaque: Function that takes the number of an object that was not sent, and returns a
            stand-in for the object.
    """

    def __init__(self, classes: Mapping[str, type], opaque: Callable[[int], Any]) -> None:
        self._classes = classes
        self._opaque = opaque

    def read(self, message: Any, known: Sequence[Any] = ()) -> Any:
        """Return the value of a message, and store the objects in its heap in `objects`.

        Args:
            message: A message from a `Writer`, or a forged message.
            known: Objects with the first indices in the heap. Mutable objects are updated in place
                with the message's content.

        Raises:
            ValueError: If the message is malformed.
            Exception: If hashing or memory allocation fails.
        """
        root, heap = _list(message, 2)
        pairs = [_list(record, 2) for record in _list(heap)]
        records = [(as_text(tag), _list(items)) for tag, items in pairs]
        self.objects: list[Any] = []
        self._inner: list[Any] = []
        for i, (tag, items) in enumerate(records):
            self._add_shell(tag, items, known[i] if i < len(known) else None)
        self._depth: dict[int, int] = {}
        for i, (tag, items) in enumerate(records):
            if tag in ("t", "f"):
                self._build(i, tag, items)
        # Sets and dicts come last, because hashing may read the content of other objects.
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
            raise ValueError(f"tuples are nested more than {DEEPEST} levels deep")
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
            x = self.objects[_index(parts[0])]
            if x is _UNBUILT:
                raise ValueError("a tuple comes before its items")
            return x
        if tag == "h":
            return self._opaque(_index(parts[0]))
        return _SCALARS[as_text(tag)](*parts)


_AS_IT_IS = PLAIN | {int}


def _list(x: Any, length: int | None = None) -> list[Any]:
    if type(x) is not list or (length is not None and len(x) != length):
        raise ValueError("not a list, or a list of the wrong length")
    return x


def as_text(x: Any) -> str:
    """Return a string unchanged. Raise a ValueError for any other value."""
    if type(x) is not str:
        raise ValueError("not a text")
    return x


def _index(x: Any) -> int:
    if type(x) is not int or x < 0:
        raise ValueError("not an index")
    return x


def _attribute(cls: type, name: Any) -> str:
    """Return the name of an attribute that may be set on objects of a class.

    An attribute that would replace a method is refused, because the tests would trust the method.
    """
    if not as_text(name).isidentifier() or name.startswith("__"):
        raise ValueError("an attribute that must not be set")
    own = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if hasattr(own, "__get__") and not isinstance(own, MemberDescriptorType):
        raise ValueError("an attribute that would replace a method")
    return name


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def _integer(text: Any) -> int:
    return int(as_text(text), 16)


def _fraction(*parts: Any) -> Fraction:
    # Reducing a fraction takes quadratic time.
    if any(len(as_text(part)) > _LONGEST_FRACTION for part in parts):
        raise ValueError("a fraction with too many digits")
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
