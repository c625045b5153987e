"""Imports the adapters of `examples/adapters` as a script imports its copies of them."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ADAPTERS = Path(__file__).parents[3] / "examples" / "adapters"


def adapter(name):
    """Return a new module `gdpo_<name>` from `<name>.py`, as the how-to pages name the copy."""
    spec = spec_from_file_location(f"gdpo_{name}", ADAPTERS / f"{name}.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
