"""Imports pyarrow on its first use, because JSON, CSV and metrics can be read without it."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gdpo.errors import MissingExtraError

PYARROW = "pyarrow (pip install pyarrow)"


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = import_module(self._name)
        except ImportError as error:
            raise MissingExtraError(PYARROW, None, "to read this file") from error
        return getattr(module, attribute)


HAS_PYARROW = find_spec("pyarrow") is not None
pa: Any = _Module("pyarrow")
pc: Any = _Module("pyarrow.compute")
pacsv: Any = _Module("pyarrow.csv")
pq: Any = _Module("pyarrow.parquet")
