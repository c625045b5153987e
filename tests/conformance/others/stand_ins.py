"""Replaces packages that are not installed by empty modules."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from unittest.mock import MagicMock

NOT_HERE = 77
"""Exit code of a script whose framework is not installed."""


class Empty(MetaPathFinder, Loader):
    """Imports modules in which every name exists."""

    def __init__(self, absent):
        self.absent = absent
        self.used = set()

    def find_spec(self, fullname, path, target=None):
        absent = fullname.partition(".")[0] in self.absent
        return ModuleSpec(fullname, self, is_package=True) if absent else None

    def create_module(self, spec):
        self.used.add(spec.name.partition(".")[0])
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__all__ = spec, [], []
        return module

    def exec_module(self, module):
        pass


def empty(packages):
    """Replace the missing packages, and return the packages that get imported."""
    finder = Empty({name for name in packages if find_spec(name) is None})
    sys.meta_path.append(finder)
    return finder.used
