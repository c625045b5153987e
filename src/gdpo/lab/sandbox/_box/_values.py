"""Converts values to JSON-compatible data and back, for messages between grader and program.

A message is `[root, heap]`. Scalars are stored directly. Containers and objects that can be shared
are records `[tag, items]` in the heap, to which values refer by index. Lists may thus contain
themselves, and deep nesting needs no recursion. A value of a subclass of a builtin type is read and
sent as the builtin type.

Values that are read have exact builtin types or known classes. Any invalid message, even a forged
one, causes an exception: a ValueError if it is malformed, or an error in hashing or allocation.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import MemberDescriptorType
from typing import Any

_DEEPEST = 100
"""Maximum nesting depth of tuples. Hashing a tuple recurses in C, where nothing limits the
depth."""

_PLAIN = frozenset({type(None), bool, str, float})
"""Types whose values JSON stores unchanged."""

_AS_IT_IS = _PLAIN | {int}

_TYPES = {
    t.__name__: t
    for t in (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, type(None))
}
"""Types that can be sent as values."""

_LARGE = 1 << 63

_CONTAINERS: dict[type, str] = {
    list: "l", tuple: "t", set: "s", frozenset: "f", dict: "d", deque: "q",
    type({}.keys()): "k", type({}.values()): "v", type({}.items()): "i",
}  # fmt: skip

_WRITE_SCALAR: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: lambda x: _write_integer(int.__pos__(x)),
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
        opaque: Returns a number for an object that cannot be sent, or raises an exception.
        most: Maximum number of items that one iterator may yield.
    """

    def __init__(self, classes: Iterable[str], opaque: Callable[[Any], int], most: int) -> None:
        self._classes = frozenset(classes)
        self._opaque = opaque
        self._most = most

    def write(self, value: Any, known: Sequence[Any] = ()) -> list[Any]:
        """Return the message for a value, and store the objects in its heap in `objects`.

        Objects of an earlier message (`known`) get the first indices, and are always written.

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
        if kinds <= _PLAIN or (kinds == {int} and min(items) > -_LARGE and max(items) < _LARGE):
            return items
        return [self._value(x, depth) for x in items]

    def _value(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return x
        if kind is int:
            return _write_integer(x)
        found = self._index.get(id(x))
        return self._other(x, kind, depth) if found is None else ["#", found]

    def _other(self, x: Any, kind: type, depth: int) -> Any:
        base = _base(kind)
        if base in _WRITE_SCALAR:
            return _WRITE_SCALAR[base](x)
        if base in (tuple, frozenset):
            return self._immutable(x, depth)
        if base or kind.__name__ in self._classes or hasattr(kind, "__next__"):
            record = self._record(x)
            i = self._allocate(x)
            self._todo.append((i, record))
            return ["#", i]
        if kind is type and _TYPES.get(x.__name__) is x:
            return ["T", x.__name__]
        return ["h", self._opaque(x)]

    def _immutable(self, x: Any, depth: int) -> Any:
        # Write the items first, because the reader builds immutable objects in heap order.
        if depth > _DEEPEST:
            raise TooMuch(f"tuples are nested more than {_DEEPEST} levels deep")
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
        if base in _WRITE_SCALAR or base in _CONTAINERS:
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


def _write_integer(x: int) -> Any:
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
        opaque: Returns a stand-in for an object that was not sent, by its number.
    """

    def __init__(self, classes: Mapping[str, type], opaque: Callable[[int], Any]) -> None:
        self._classes = classes
        self._opaque = opaque

    def read(self, message: Any, known: Sequence[Any] = ()) -> Any:
        """Return the value of a message, and store the objects in its heap in `objects`.

        Args:
            message: A message from a `Writer`, or a forged one.
            known: Objects with the first indices in the heap. Mutable ones are updated in place.

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
        if self._depth[i] > _DEEPEST + 1:
            raise ValueError(f"tuples are nested more than {_DEEPEST} levels deep")
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
        return _READ_SCALAR[as_text(tag)](*parts)


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

    One that would replace a method is refused, because the tests would trust it.
    """
    if not as_text(name).isidentifier() or name.startswith("__"):
        raise ValueError("an attribute that must not be set")
    own = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if hasattr(own, "__get__") and not isinstance(own, MemberDescriptorType):
        raise ValueError("an attribute that would replace a method")
    return name


def _pairs(values: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def _read_integer(text: Any) -> int:
    return int(as_text(text), 16)


def _fraction(*parts: Any) -> Fraction:
    # Reducing a fraction takes quadratic time.
    if any(len(as_text(part)) > _LONGEST_FRACTION for part in parts):
        raise ValueError("a fraction with too many digits")
    return Fraction(*map(_read_integer, parts))


_READ_SCALAR: dict[str, Callable[..., Any]] = {
    "I": _read_integer,
    "c": complex,
    "b": lambda text: as_text(text).encode("latin-1"),
    "B": lambda text: bytearray(as_text(text), "latin-1"),
    "r": lambda *parts: range(*map(_read_integer, parts)),
    "D": lambda text: Decimal(as_text(text)),
    "F": _fraction,
    "T": lambda name: _TYPES[as_text(name)],
    "...": lambda: ...,
}
