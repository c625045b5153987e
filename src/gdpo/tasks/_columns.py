"""Takes text out of a row, and says which column is wrong where it cannot."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from gdpo.errors import DataError

_ROLES = ("system", "user", "assistant")

_SHOWN = 60
"""Characters of a wrong value that a message shows."""


def without_arrays(value: Any) -> Any:
    """Return a row or a value of one as JSON has it: a data frame makes arrays of lists.

    Raises:
        DataError: It is nested too deeply.
    """
    try:
        return _without_arrays(value)
    except RecursionError as error:
        raise DataError("a row is nested too deeply to be read") from error


def _without_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): _without_arrays(item) for key, item in mapping.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_without_arrays(item) for item in cast("Sequence[Any]", value)]
    return value.item() if isinstance(value, np.generic) else value


def text_at(row: Mapping[str, Any], *path: str) -> str:
    """The text in a column, or deeper inside it.

    Args:
        row: A row that has the column.
        path: The column, then the keys below it.

    Raises:
        DataError: A key is missing, or what is there is no text or only whitespace.
    """
    place = ".".join(path)
    value: Any = row
    for key in path:
        value = mapping_of(value, place).get(key)
    if not isinstance(value, str):
        raise DataError(f"column {place!r} must hold text, got {describe(value)}")
    if not value.strip():
        raise DataError(f"column {place!r} is empty; it must hold text")
    return value


def messages_at(row: Mapping[str, Any], column: str) -> list[dict[str, str]]:
    """The chat messages in a column.

    Raises:
        DataError: It holds no list of messages, or one has no role or content.
    """
    value = row.get(column)
    if not isinstance(value, list) or not value:
        raise DataError(
            f"column {column!r} must hold a list of messages with role and content, "
            f"got {describe(value)}"
        )
    return [_message(item, f"{column}[{i}]") for i, item in enumerate(cast("list[Any]", value))]


def _message(value: Any, place: str) -> dict[str, str]:
    fields = mapping_of(value, place)
    role, content = fields.get("role"), fields.get("content")
    if role not in _ROLES:
        raise DataError(
            f"column '{place}.role' must be one of {', '.join(_ROLES)}, got {describe(role)}"
        )
    if not isinstance(content, str):
        raise DataError(f"column '{place}.content' must hold text, got {describe(content)}")
    return {"role": role, "content": content}


def mapping_of(value: Any, place: str) -> Mapping[str, Any]:
    """The value as an object, or a DataError that names the column."""
    if not isinstance(value, Mapping):
        raise DataError(f"column {place!r} must lie in an object, got {describe(value)}")
    return cast("Mapping[str, Any]", value)


def describe(value: Any) -> str:
    """What a value is, for a message: nothing, or its type and its beginning."""
    if value is None:
        return "nothing"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"
