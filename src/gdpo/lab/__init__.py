"""Runs whole experiments: recipes, training, comparisons and evaluations.

The other modules of gdpo import nothing from here, and do not need the packages in `NEEDS`.

Raises:
    MissingExtraError: If the extra `lab` is not installed.
"""

from importlib.util import find_spec

from gdpo.errors import MissingExtraError

NEEDS = ("cloudpickle", "pydantic", "yaml")

for _package in NEEDS:
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "lab", "for recipes, training and comparisons")
