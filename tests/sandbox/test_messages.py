"""Messages between a program and its grader: values that can be sent, and forged messages."""

import enum
import itertools
import json
import random
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest

from gdpo.lab.sandbox._box._values import Reader, TooMuch, Writer

MOST = 1000


class Node:
    def __init__(self, value, after=None):
        self.value = value
        self.after = after

    def equals(self, other):
        return self.value == other.value


class Slotted:
    __slots__ = ("left",)


CLASSES = {"Node": Node, "Slotted": Slotted}


def opaque(x):
    raise LookupError(x)


def writer():
    return Writer(CLASSES, opaque, MOST)


def reader():
    return Reader(CLASSES, opaque)


def travel(value):
    return reader().read(json.loads(json.dumps(writer().write(value))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**63, -(2**63), 10**5000, 1.5, -0.0, float("inf"), 1j, "é\ud800",
        b"\xff\0", bytearray(b"a"), ..., int, type(None), range(3, 10, 2), Decimal("1.10"),
        Fraction(1, 3),
        [], [1, [2, (3, 4)], {5}], {(1, (2, frozenset([3]))): [4]}, {1: 2, "1": 3}, deque([1]),
        ((),),
        {1, (2,)}, [1, 2**70], [True, 1, 0.5],
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}" if value != 10**5000 else "giant",
)  # fmt: skip
def test_a_builtin_value_arrives_as_it_was(value):
    arrived = travel(value)
    assert type(arrived) is type(value)
    assert arrived == value


def test_minus_zero_and_nan_keep_their_nature():
    zero, nan = travel([-0.0, float("nan")])
    assert str(zero) == "-0.0"
    assert nan != nan


class Liar(list):
    """A list whose iterator does not return its items."""

    def __iter__(self):
        return iter([42])

    def __len__(self):
        return 1

    def __eq__(self, other):
        return True

    def __reduce__(self):
        raise AssertionError("nobody pickles")

    __hash__ = None


class Number(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 42

    def __int__(self):
        return 42

    __hash__ = int.__hash__


class Text(str):
    def __str__(self):
        return "42"

    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Real(float):
    def __float__(self):
        return 42.0


class Colour(enum.IntEnum):
    RED = 3


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Liar([1, 2]), [1, 2]), (Number(7), 7), (Text("a"), "a"), (Real(1.5), 1.5), (Colour.RED, 3),
        (Pair(1, 2), (1, 2)), (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}),
        ([Liar([Number(7)])], [[7]]), ({Text("a"): Number(1)}, {"a": 1}),
    ],
)  # fmt: skip
def test_a_subclass_arrives_as_what_it_really_holds(value, plain):
    arrived = travel(value)
    assert arrived == plain
    assert everything(arrived) <= {list, int, str, float, tuple, dict}


def everything(value, seen=None):
    """Return all types in a value."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return set()
    seen[id(value)] = value
    kinds = {type(value)}
    if isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        inside = list(value)
    else:
        inside = list(vars(value).values()) if type(value) is Node else []
    return kinds.union(*(everything(x, seen) for x in inside))


def test_views_and_iterators_arrive_as_such():
    d = {"a": [1]}
    assert travel(d.keys()) == d.keys()
    assert travel(d.items()) == d.items()
    assert list(travel(d.values())) == [[1]]
    assert list(travel(x * x for x in range(3))) == [0, 1, 4]
    assert list(travel(zip("ab", [1, 2], strict=True))) == [("a", 1), ("b", 2)]


def test_an_iterator_without_end_is_too_much():
    with pytest.raises(TooMuch):
        writer().write(itertools.count())


def test_tuples_in_tuples_are_bounded():
    deep = ()
    for _ in range(10_000):
        deep = (deep,)
    with pytest.raises(TooMuch):
        writer().write(deep)
    made_up = [["#", 999], [["t", [["#", i - 1]] if i else []] for i in range(1000)]]
    with pytest.raises(ValueError, match="nested"):
        reader().read(made_up)


def test_what_holds_itself_and_what_appears_twice_keep_their_shape():
    ring = []
    ring.append(ring)
    arrived = travel(ring)
    assert arrived[0] is arrived
    knot = ([],)
    knot[0].append(knot)
    arrived = travel(knot)
    assert arrived[0][0] is arrived
    shared = [1]
    one, other = travel([shared, shared])
    assert one is other


def test_a_long_chain_of_the_tests_objects_arrives():
    chain = None
    for value in range(5_000):
        chain = Node(value, chain)
    arrived, length = travel(chain), 0
    while arrived is not None:
        assert type(arrived) is Node
        arrived, length = arrived.after, length + 1
    assert length == 5_000


def test_slots_travel_as_attributes_do():
    slotted = Slotted()
    slotted.left = [1]
    assert travel(slotted).left == [1]


def test_an_argument_changed_in_place_is_changed_where_it_came_from():
    mine = [[3, 1], {"a": Node(1)}, {5}, deque([1])]
    there = writer()
    message = there.write(mine)
    receiver = reader()
    theirs = receiver.read(message)
    theirs[0].sort()
    theirs[1]["a"].value = [9]
    theirs[2].add(6)
    theirs[3].clear()
    inner, node = mine[0], mine[1]["a"]
    reader().read(writer().write(theirs, receiver.objects), there.objects)
    assert mine[0] is inner
    assert mine[1]["a"] is node
    assert (inner, node.value, mine[2], mine[3]) == ([1, 3], [9], {5, 6}, deque())


@pytest.mark.parametrize("name", ["equals", "__class__", "__dict__", "__eq__", "a b", "", 1, None])
def test_no_message_sets_a_method_or_a_special_attribute(name):
    with pytest.raises(ValueError, match=r"attribute|text"):
        reader().read([["#", 0], [["o", ["Node", name, 1]]]])


@pytest.mark.parametrize(
    "message",
    [
        None, 1, "x", [], [1], [1, 2], [1, [], 3], [["#", 0], []], [["#", -1], [["l", []]]],
        [["#", True], [["l", []]]], [["#"], []], [["h", 0], []], [["h", "0"], []], [["?", 1], []],
        [[], []], [{"a": 1}, []], [1, [["x", []]]], [1, [["l", {}]]], [1, [["l"]]], [1, [[1, []]]],
        [1, [["o", []]]], [1, [["o", ["Unknown"]]]], [1, [["o", ["Node", "a"]]]],
        [1, [["d", [1]]]], [1, [["d", [["#", 0], 1]]]], [1, [["s", [["#", 0]]]]],
        [1, [["t", [["#", 0]]]]], [1, [["t", [["#", 1]]], ["t", []]]],
        [1, [["f", [["#", 1]]], ["l", []]]],
        [["I", "zz"], []], [["I", 1], []], [["F", "0x1", "0x0"], []],
        [["F", "0x1" * 9999, "0x1"], []],
        [["T", "object"], []], [["T", ["a"]], []], [["D", "x"], []], [["b", "€"], []]
    ],
)  # fmt: skip
def test_a_made_up_message_is_refused(message):
    with pytest.raises(Exception):  # noqa: B017, PT011
        reader().read(message)


def test_whatever_a_message_says_only_known_types_come_of_it():
    rng = random.Random(0)
    original = writer().write(
        [1, (2, [3, {4: 5}]), {6}, Node(1, Node(2)), iter([2]), 1j, b"x", 2**70, {"a": 1}.keys()]
    )
    allowed = {
        type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset,
        dict, deque, range, Decimal, Fraction, Node, Slotted, type, type(...), type({}.keys()),
        type({}.values()), type({}.items()), type(iter([])),
    }  # fmt: skip
    parts = [
        0, 1, 2, -1, 99, "l", "t", "d", "s", "f", "o", "n", "k", "q", "#", "I", "T", ["#", 0],
        ["#", 3], ["I", "0x1"], ["T", "int"], None, [], {}, "Node", "value", "__class__",
        "equals", 1.5,
    ]  # fmt: skip

    def changed(x):
        if not isinstance(x, list) or not x or rng.random() < 0.1:
            return rng.choice(parts)
        y, i, how = list(x), rng.randrange(len(x)), rng.random()
        if how < 0.7:
            y[i] = changed(y[i])
        elif how < 0.8:
            del y[i]
        else:
            y.insert(i, rng.choice(parts))
        return y

    accepted = 0
    for _ in range(10_000):
        message = original
        for _ in range(rng.randint(1, 3)):
            message = changed(message)
        try:
            value = reader().read(json.loads(json.dumps(message)))
        except Exception:  # noqa: BLE001
            continue
        accepted += 1
        assert everything(value) <= allowed, message
    assert accepted > 250
