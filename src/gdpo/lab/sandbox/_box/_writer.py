"""Converts values to JSON-compatible data for the messages between the grader and a program.

A message is `[root, heap]`. Scalars are stored directly. Containers and objects that can be shared
are records `[tag, items]` in the heap, to which values refer by index. Therefore, lists may contain
themselves, and deep nesting needs no recursion. A value of a subclass of a builtin type is read
with the methods of the builtin type and sent as this type.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

DEEPEST = 100
"""Maximum nesting depth of tuples. Hashing a tuple recurses in C, where nothing limits the
depth."""

PLAIN = frozenset({type(None), bool, str, float})
"""Types whose values JSON stores unchanged."""

TYPES = {
    t.__name__: t
    for t in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, type(None))
}
"""Types that can be sent as values."""

_LARGE = 1 << 63

_CONTAINERS: dict[type, str] = {
    list: "l", tuple: "t", set: "s", frozenset: "f", dict: "d", deque: "q",
    type({}.keys()): "k", type({}.values()): "v", type({}.items()): "i",
}  # fmt: skip

_SCALARS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: lambda x: _integer(int.__pos__(x)),
    float: float.__pos__,
    complex: lambda x: ["c", x.real, x.imag],
    bytes: lambda x: ["b", bytes.decode(x, "latin-1")],
    bytearray: lambda x: ["B", bytearray.decode(x, "latin-1")],
    range: lambda x: ["r", *map(hex, (x.start, x.stop, x.step))],
    Decimal: lambda x: ["D", Decimal.__str__(x)],
    Fraction: lambda x: ["F", hex(x.numerator), hex(x.denominator)],
    type(...): lambda _: ["..."],
}

Record = tuple[str, list[Any]]


class TooMuch(ValueError):
    """Raised if a value has too many items or is nested too deeply for a message."""


class Writer:
    """Converts values to messages.

    Args:
        classes: Names of the classes whose objects are sent as a list of attributes.
        opaque: Function that returns a number for an object that cannot be sent, or raises an
            exception.
        most: Maximum number of items that one iterator may yield.
    """

    def __init__(self, classes: Iterable[str], opaque: Callable[[Any], int], most: int) -> None:
        self._classes = frozenset(classes)
        self._opaque = opaque
        self._most = most

    def write(self, value: Any, known: Sequence[Any] = ()) -> list[Any]:
        """Return the message for a value, and store the objects in its heap in `objects`.

        Objects of an earlier message (`known`) get the first indices in the heap, and are written
        even if the value does not refer to them.

        Raises:
            TooMuch: If an iterator yields too many items, or tuples are nested too deeply.
        """
        self._heap: list[Any] = [None] * len(known)
        self.objects = list(known)
        # Keeps temporary objects alive while their ids are in use.
        self._alive: list[Any] = []
        self._index = {id(x): i for i, x in enumerate(known)}
        self._todo = [(i, self._record(x)) for i, x in enumerate(known)]
        root = self._value(value, 0)
        while self._todo:
            i, (tag, items) = self._todo.pop()
            self._heap[i] = [tag, self._values(items, 0)]
        return [root, self._heap]

    def _values(self, items: list[Any], depth: int) -> list[Any]:
        kinds = set(map(type, items))
        if kinds <= PLAIN or (kinds == {int} and min(items) > -_LARGE and max(items) < _LARGE):
            return items
        return [self._value(x, depth) for x in items]

    def _value(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind in PLAIN:
            return x
        if kind is int:
            return _integer(x)
        found = self._index.get(id(x))
        return self._other(x, kind, depth) if found is None else ["#", found]

    def _other(self, x: Any, kind: type, depth: int) -> Any:
        base = _base(kind)
        if base in _SCALARS:
            return _SCALARS[base](x)
        if base in (tuple, frozenset):
            return self._immutable(x, depth)
        if base or kind.__name__ in self._classes or hasattr(kind, "__next__"):
            record = self._record(x)
            i = self._allocate(x)
            self._todo.append((i, record))
            return ["#", i]
        if kind is type and TYPES.get(x.__name__) is x:
            return ["T", x.__name__]
        return ["h", self._opaque(x)]

    def _immutable(self, x: Any, depth: int) -> Any:
        # Write the items first, because the reader builds immutable objects in heap order.
        if depth > DEEPEST:
            raise TooMuch(f"tuples are nested more than {DEEPEST} levels deep")
        tag, items = self._record(x)
        record = [tag, self._values(items, depth + 1)]
        i = self._allocate(x)
        self._heap[i] = record
        return ["#", i]

    def _allocate(self, x: Any) -> int:
        self._index[id(x)] = len(self._heap)
        self.objects.append(x)
        self._heap.append(None)
        return len(self._heap) - 1

    def _record(self, x: Any) -> Record:
        kind = type(x)
        base = _base(kind)
        if base is not None:
            return _container(x, base)
        if kind.__name__ in self._classes:
            return "o", [kind.__name__, *_flat(_attributes(x).items())]
        items = list(islice(x, self._most + 1))
        if len(items) > self._most:
            raise TooMuch(f"an iterator yields more than {self._most} items")
        self._alive.append(items)
        return "n", items


def _base(kind: type) -> type | None:
    for base in kind.__mro__:
        if base in _SCALARS or base in _CONTAINERS:
            return base
    return None


def _container(x: Any, base: type) -> Record:
    tag = _CONTAINERS[base]
    if tag == "d":
        return tag, _flat(dict.items(x))
    if tag == "k":
        return tag, _flat((y, None) for y in x)
    if tag == "v":
        return tag, _flat(enumerate(x))
    if tag == "i":
        return tag, _flat(x)
    return tag, list(base.__iter__(x))


def _integer(x: int) -> Any:
    # Conversion to decimal takes quadratic time, and Python does not allow it for large integers.
    return x if -_LARGE < x < _LARGE else ["I", hex(x)]


def _flat(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    return [y for pair in pairs for y in pair]


def _attributes(x: Any) -> dict[str, Any]:
    declared = [cls.__dict__.get("__slots__", ()) for cls in type(x).__mro__]
    slots = [
        name
        for names in declared
        for name in ([names] if isinstance(names, str) else list(names))
        if name not in ("__dict__", "__weakref__") and hasattr(x, name)
    ]
    return {**{name: getattr(x, name) for name in slots}, **getattr(x, "__dict__", {})}
