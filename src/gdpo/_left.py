"""Lists what the last version had and this one does not, and what replaces it.

A name that left is thereby told from a typing error. An entry stays for one version.
"""

LEFT: dict[str, str] = {}
"""Maps a name to what replaces it: `gdpo.module.name` for an import, `--option`, a key of a recipe
or an option by name, or a command. The text continues "has left: "."""


def absent(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have.

    A name that left is an ImportError, because `from module import name` would replace the message
    of an AttributeError.
    """
    if (instead := LEFT.get(f"{module}.{name}")) is not None:
        return ImportError(f"{module}.{name} has left: {instead}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
