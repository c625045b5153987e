"""Lists the names that this version removed, and what replaces each of them.

So a message can distinguish a removed name from a typing error. An entry stays for one version.
"""

_ENDS = "gdpo report FOLDER --export NUMBERS writes the end values of each variant to ends.csv"

LEFT: dict[str, str] = {
    "gdpo.lab.evaluation.Settings": "import EvaluationSettings",
    "gdpo.lab.report.front_summary": (
        "write_report(export=...) writes the end values of each variant to ends.csv"
    ),
    "gdpo.lab.tasks.near_duplicates": (
        "filter the file before the run, for example with datatrove or text-dedup"
    ),
    "gdpo.priority.smallest_weight": "use priority(Combination(...), values, primary).smallest",
    "gdpo.rollouts.readers.Turns": "import TableTurns",
    "analyze --format": "use --columns format=NAME",
    "analyze --group-size": "use --columns group_size=N",
    "analyze --high": "use --range NAME=LOWEST:HIGHEST",
    "analyze --json": "use --output json",
    "analyze --low": "use --range NAME=LOWEST:HIGHEST",
    "analyze --no-report": "use --output none",
    "analyze --report": "the page is written unless --output says otherwise",
    "compare --front": _ENDS,
    "influence": (
        "set the weights of the rewards. docs/how-to/choose_weights.md computes weights that "
        "give each reward a share"
    ),
    "near_duplicates": "filter the file before the run, for example with datatrove or text-dedup",
    "report --front": _ENDS,
}
"""Maps a name to what replaces it: `gdpo.module.name` for an import, `verb --option`, or a key
of a recipe or an option by name. The text follows "was removed: "."""


def absent(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have.

    A removed name is an ImportError, because `from module import name` would replace the message
    of an AttributeError.
    """
    if (instead := LEFT.get(f"{module}.{name}")) is not None:
        return ImportError(f"{module}.{name} was removed: {instead}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
