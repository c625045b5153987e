"""Reads the tests of a row, in the shapes in which coding datasets are published.

Every function takes a row and returns what `gdpo.rewards.code` wants under `tests`, as JSON-like
data:

- `mbpp_tests`: MBPP, both editions;
- `humaneval_tests`: HumanEval, and HumanEval+ (`plus.py`, which has MBPP+ too);
- `leetcode_tests`: LeetCodeDataset;
- `input_output_tests`: APPS, TACO;
- `code_contests_tests`: CodeContests;
- `ground_truth_tests`: Eurus-2-RL (APPS, TACO, CodeContests and Codeforces in one shape).

What the tests need beside the program comes from the row where the row has it: a program that could
bring its own `poly` would choose what its answer is measured with.

No row's time limit is read: it is meant per test, and for compiled languages.
"""

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from gdpo.errors import DataError
from gdpo.tasks.coding.plus import is_plus, plus_check
from gdpo.tasks.rows import describe, mapping_of, text_at
from gdpo.tasks.task import Row

TestsOfRow: TypeAlias = dict[str, Any]
"""`kind` and what that kind needs."""

_PARTS = ("public_tests", "private_tests", "generated_tests")


def mbpp_tests(row: Row) -> TestsOfRow:
    """MBPP: every assert of `test_list` is a test.

    `test_imports` (the sanitized edition) and `test_setup_code` become the setup. In tasks 367 and
    927 it builds on a class `Node` that only the reference solution defines: other programs fail.

    Raises:
        DataError: A column is missing, or is no Python.
    """
    statements = _texts(row.get("test_list"), "test_list")
    for i, statement in enumerate(statements):
        _parsed(statement, f"test_list[{i}]")
    imports = _texts(row.get("test_imports") or [], "test_imports", least=0)
    setup = "\n".join([*imports, str(row.get("test_setup_code") or "")]).strip()
    _parsed(setup, "test_setup_code")
    return {"kind": "asserts", "statements": statements, "setup": setup}


def humaneval_tests(row: Row) -> TestsOfRow:
    """HumanEval: every assert that `check(candidate)` reaches is a test.

    The setup is what stands in the prompt beside the wanted function: imports, and the helpers that
    some tests use (`poly`, `encode_cyclic`, `encode_shift`).

    Raises:
        DataError: A column is missing, is no Python, or the prompt does not hold the function.
    """
    entry_point, prompt = text_at(row, "entry_point"), text_at(row, "prompt")
    tree = _parsed(prompt, "prompt")
    beside = [node for node in tree.body if getattr(node, "name", None) != entry_point]
    if len(beside) == len(tree.body):
        raise DataError(f"column 'prompt' must hold the beginning of the function {entry_point!r}")
    code, setup = _code_at(row, "test", "check"), ast.unparse(ast.Module(beside, []))
    code = plus_check(code) if is_plus(row) else code
    return {"kind": "check", "code": code, "entry_point": entry_point, "setup": setup}


def leetcode_tests(row: Row) -> TestsOfRow:
    """LeetCodeDataset: every assert of `check(candidate)` is a test; the setup is `prompt`.

    Raises:
        DataError: A column is missing or no Python.
    """
    code, setup = _code_at(row, "test", "check"), text_at(row, "prompt")
    _parsed(setup, "prompt")
    entry_point = text_at(row, "entry_point")
    return {"kind": "check", "code": code, "entry_point": entry_point, "setup": setup}


def input_output_tests(row: Row) -> TestsOfRow:
    """APPS and TACO: `input_output` holds `inputs` and `outputs`, as an object or as JSON text.

    With `fn_name`, each input is a list of arguments and each output the value to return. The
    function may be a method of a class `Solution`, as these rows' starter code has it, or stand
    alone. Three habits of these rows are undone, for whole rows only:

    - if every output is a list of one item, that item is the value (the published evaluator takes
      either; here a function that must return a list of one item each time would be misread);
    - an object whose keys are all whole numbers has them as numbers, which JSON cannot say;
    - standard input given as a list of lines is joined.

    Raises:
        DataError: No JSON, no tests, or inputs and outputs that do not match.
    """
    return _inputs_outputs(_object_at(row, "input_output"), "input_output")


def ground_truth_tests(row: Row) -> TestsOfRow:
    """Eurus-2-RL: `reward_model.ground_truth` holds what `input_output` holds in APPS.

    Raises:
        DataError: As `input_output_tests`.
    """
    place = "reward_model.ground_truth"
    return _inputs_outputs(_object_at(row, "reward_model", "ground_truth"), place)


def code_contests_tests(row: Row) -> TestsOfRow:
    """CodeContests: `public_tests`, `private_tests` and `generated_tests`, in this order.

    Raises:
        DataError: None of the three holds a test, or inputs and outputs do not match.
    """
    cases: list[list[str]] = []
    for part in _PARTS:
        if row.get(part) is not None:
            held = _object_at(row, part)
            cases += _stdio_cases(held.get("input"), held.get("output"), part)
    if not cases:
        raise DataError(
            f"the row has no test: one of the columns {', '.join(_PARTS)} must hold one"
        )
    return {"kind": "stdio", "cases": cases}


def _inputs_outputs(held: Mapping[str, Any], place: str) -> TestsOfRow:
    inputs, outputs = held.get("inputs"), held.get("outputs")
    if held.get("fn_name") is None:
        cases = _stdio_cases(inputs, outputs, place)
    else:
        cases = _call_cases(inputs, outputs, place)
    if not cases:
        raise DataError(f"column {place!r} holds no test: 'inputs' is empty")
    if held.get("fn_name") is None:
        return {"kind": "stdio", "cases": cases}
    name = text_at(held, "fn_name")
    if not name.isidentifier():
        raise DataError(f"column '{place}.fn_name' must be a function's name, got {name!r}")
    function = f"Solution().{name} if 'Solution' in globals() else {name}"
    return {"kind": "calls", "function": function, "cases": cases}


def _stdio_cases(inputs: Any, outputs: Any, place: str) -> list[list[str]]:
    pairs = _paired(inputs, outputs, place)
    return [[_stream(stdin, place, i), _stream(stdout, place, i)] for i, (stdin, stdout) in pairs]


def _stream(value: Any, place: str, index: int) -> str:
    lines = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise DataError(
            f"column {place!r}: inputs and outputs must be text, or lists of lines, got "
            f"{describe(value)} in test {index}"
        )
    return "\n".join(lines)


def _call_cases(inputs: Any, outputs: Any, place: str) -> list[list[Any]]:
    pairs = _paired(inputs, outputs, place)
    wrapped = all(isinstance(value, list) and len(value) == 1 for _, (_, value) in pairs)
    cases: list[list[Any]] = []
    for i, (arguments, value) in pairs:
        if not isinstance(arguments, list):
            raise DataError(
                f"column {place!r}: with 'fn_name', each input must be a list of arguments, got "
                f"{describe(arguments)} in test {i}"
            )
        given = cast("list[Any]", arguments)
        cases.append([[_keyed(each) for each in given], _keyed(value[0] if wrapped else value)])
    return cases


def _keyed(value: Any) -> Any:
    """An object with its whole numbers as keys again; anything else as it is."""
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, Any]", value)
    whole = bool(items) and all(key.removeprefix("-").isdecimal() for key in items)
    return {int(key): held for key, held in items.items()} if whole else items


def _paired(inputs: Any, outputs: Any, place: str) -> list[tuple[int, tuple[Any, Any]]]:
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(value, list):
            raise DataError(f"column {place!r}: its {name} must be a list, got {describe(value)}")
    if len(inputs) != len(outputs):
        raise DataError(
            f"column {place!r} has {len(inputs)} inputs but {len(outputs)} outputs: one of each "
            f"per test"
        )
    return list(enumerate(zip(inputs, outputs, strict=True)))


def _object_at(row: Row, *path: str) -> Mapping[str, Any]:
    """The object in a column, given as one or as JSON text."""
    place = ".".join(path)
    value: Any = row
    for key in path:
        value = mapping_of(value, place).get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"column {place!r} is no JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise DataError(
            f"column {place!r} must hold an object, or one as JSON text, got {describe(value)}"
        )
    return cast("Mapping[str, Any]", value)


def _texts(value: Any, place: str, *, least: int = 1) -> list[str]:
    texts = cast("list[Any]", value)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"column {place!r} must hold a list of texts, got {describe(value)}")
    if len(texts) < least:
        raise DataError(f"column {place!r} is empty: a program needs at least one test")
    return list(texts)


def _code_at(row: Row, column: str, function: str) -> str:
    code = text_at(row, column)
    if not any(getattr(node, "name", None) == function for node in _parsed(code, column).body):
        raise DataError(f"column {column!r} must define the function {function!r}")
    return code


def _parsed(code: str, place: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a row's texts, which nobody here mends
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"column {place!r} is no Python: {error}") from error
