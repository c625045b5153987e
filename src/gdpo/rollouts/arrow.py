"""Imports pyarrow on its first use, because JSON and metrics are read without it."""

from importlib import import_module
from typing import Any


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


pa: Any = _Module("pyarrow")
pc: Any = _Module("pyarrow.compute")
pacsv: Any = _Module("pyarrow.csv")
pq: Any = _Module("pyarrow.parquet")
