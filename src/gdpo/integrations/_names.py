"""Names under which our estimators stand in a framework that has a registry of its own."""

from typing import Any

from gdpo.advantages import ESTIMATORS

NAME = "gdpo"
"""The estimator that a framework has under this name is replaced by ours."""

PREFIX = "gdpo/"
"""Before the name of each of our estimators; before `module:attribute` for one of the user's."""


def estimator_names() -> list[str]:
    """Every name that one of ours stands behind."""
    return [NAME, *(f"{PREFIX}{name}" for name in ESTIMATORS)]


def is_ours(estimator: Any) -> bool:
    """Whether a name is for us; it may be a member of a framework's enumeration."""
    name = as_text(estimator)
    return name == NAME or name.startswith(PREFIX)


def without_prefix(estimator: Any) -> str:
    """A key of `ESTIMATORS`, or `module:attribute`, of a name that is for us."""
    return as_text(estimator).removeprefix(PREFIX)


def as_text(estimator: Any) -> str:
    """The name, where a framework has an enumeration of them."""
    return str(getattr(estimator, "value", estimator))
