"""To change a module when it is imported, without importing it.

A framework's modules take seconds, and most of its processes never need them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


def when_imported(name: str, change: Change) -> None:
    """Call this with the module once it has run; now, if it is imported already."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        _FINDER.changes[name] = change


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self._looking_for: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  Python's own interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        change = self.changes.get(fullname)
        if change is None or fullname in self._looking_for:
            return None
        self._looking_for.add(fullname)  # the other finders are asked through this one again
        try:
            spec = find_spec(fullname)
        finally:
            self._looking_for.discard(fullname)
        if spec is not None and spec.loader is not None:
            _change_after(spec.loader, change)
        return spec


def _change_after(loader: Any, change: Change) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        change(module)

    loader.exec_module = exec_module


_FINDER = _Finder()
sys.meta_path.insert(0, _FINDER)
