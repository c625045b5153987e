"""Reading YAML: values, places, overrides, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import config_error

from gdpo.lab.recipes.yaml import dump_yaml, override, read_yaml

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.fixture
def read(saved):
    return lambda text: read_yaml(saved("recipe.yaml", text))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-6", 1e-6),
        ("5E3", 5000.0),
        ("-.5", -0.5),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("1.", 1.0),
        ("007", 7),
        ("-12", -12),
        ("0x10", 16),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("off", "off"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("1e", "1e"),
        ("'1e-6'", "1e-6"),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1e-6}}", {"a": {"b": 1e-6}}),
    ],
)
def test_values_mean_what_they_look_like(read, written, meant):
    value = read(f"key: {written}").data["key"]
    assert value == meant
    assert type(value) is type(meant)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("yaml") / "recipe.yaml"


@given(st.dictionaries(st.text(min_size=1), plain, max_size=4))
def test_what_is_dumped_reads_back_the_same(path, data):
    path.write_text(dump_yaml(data or {"key": None}), encoding="utf-8")
    assert read_yaml(path).data == (data or {"key": None})


def test_every_value_knows_its_line(read):
    document = read("a: 1\nb:\n  - c: 2\n    d: 3\n  - c: 4\n")
    line = {path: place.rpartition(":")[2] for path, place in document.places.items()}
    assert line["a",] == "1"
    assert line["b", 0, "d"] == "4"
    assert line["b", 1, "c"] == "5"
    assert document.place(("b", 1, "missing")).endswith("recipe.yaml:5")
    assert document.place(("missing",)).endswith("recipe.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n", "recipe.yaml:1: .* list"),
        ("word\n", "recipe.yaml:1: .* single value"),
        ("a: 1\nb: [1\n", "recipe.yaml:3: not valid YAML"),
        ("a: 1\n\tb: 2\n", "recipe.yaml:2: not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "recipe.yaml:3: a .*recipe.yaml:1"),
        ("a:\n  b: 1\n  b: 1\n", "recipe.yaml:3: a.b .*recipe.yaml:2"),
        ("a: 1\n---\nb: 1\n", "recipe.yaml:2: not valid YAML"),
        ("a: &x [*x]\n", "contains itself"),
        ("a: !!python/name:os.system\n", "the tag .* is not allowed"),
        ("1: a\n", "recipe.yaml:1: .*'1'"),
        ("[a, b]: 1\n", "a key must be"),
    ],
)
def test_what_is_no_mapping_of_plain_values_is_refused(read, text, message):
    with config_error(message):
        read(text)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with config_error("UTF-8"):
        read_yaml(path)
    with config_error("there is no file"):
        read_yaml(tmp_path / "missing.yaml")


def test_an_override_replaces_and_adds_and_leaves_the_document_alone(read):
    document = read("a:\n  b: 1\nc:\n  - d: 2\n")
    changed = override(override(document, "a.b=1e-6"), "x.y.z=[1, {w: 2}]")
    changed = override(changed, "c.0.d=text")
    assert changed.data == {
        "a": {"b": 1e-6},
        "c": [{"d": "text"}],
        "x": {"y": {"z": [1, {"w": 2}]}},
    }
    assert document.data == {"a": {"b": 1}, "c": [{"d": 2}]}
    assert changed.place(("a", "b")) == "--set a.b=1e-6"
    assert changed.place(("x", "y", "z", 1, "w")).startswith("--set x.y.z=")
    assert changed.place(("a",)).endswith("recipe.yaml:1")


def test_an_override_takes_everything_after_the_first_equals_sign(read):
    assert override(read("a: 1"), "a=b=c").data == {"a": "b=c"}
    assert override(read("a: 1"), "a=").data == {"a": None}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("a", "write it as key=value"),
        ("=1", "write it as key=value"),
        ("a.b=1", "a is 1"),
        ("c.3=1", "'3' .* from 0 to 1"),
        ("c.x=1", "'x' .* from 0 to 1"),
        ("e.0=1", "--set e.0=1"),
        ("a=[1", "--set a=.* not valid YAML"),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(read, assignment, message):
    with config_error(message):
        override(read("a: 1\nc: [1, 2]\ne: []\n"), assignment)


@pytest.mark.parametrize("text", ["a: " + "9" * 5000, "a: 0x" + "f" * 5000])
def test_a_number_that_is_too_long_is_reported(read, text):
    with config_error(r"recipe.yaml:1: .* 5,00. characters"):
        read(text)


@pytest.mark.parametrize(("opening", "depth"), [("[", 101), ("{a: ", 101), ("{a: ", 1500)])
def test_nesting_that_is_too_deep_is_reported(read, opening, depth):
    with config_error("more than 100 deep"):
        read("a: " + opening * depth + ("]" if opening == "[" else "}") * depth)


def nested_aliases(levels):
    """Lists of nine aliases of the list before: 9^levels values in a few hundred bytes."""
    lines = ["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for level in range(1, levels):
        again = ", ".join([f"*l{level - 1}"] * 9)
        lines.append(f"l{level}: &l{level} [{again}]")
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [6, 30])
def test_aliases_of_aliases_are_reported_before_they_are_built(read, levels):
    with config_error(r"recipe\.yaml:\d+: .*100,000"):
        read(nested_aliases(levels))


def test_aliases_of_aliases_in_an_override_are_reported(read):
    document = read("a: 1")
    text = "{" + nested_aliases(11).replace("\n", ", ") + "}"
    with config_error(r"--set b=.*100,000"):
        override(document, f"b={text}")


def test_an_alias_is_what_it_stands_for(read):
    assert read("a: &x {lr: 1}\nb: *x\nc: [*x, *x]").data == {
        "a": {"lr": 1},
        "b": {"lr": 1},
        "c": [{"lr": 1}] * 2,
    }


def test_nesting_that_is_deep_is_read(read):
    assert read("a: " + "[" * 99 + "]" * 99).data["a"]
