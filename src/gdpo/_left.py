"""Lists the names that this version removed, and what replaces each of them.

So a message can distinguish a removed name from a typing error. An entry stays for one version.
"""

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
    "--format": "use --columns format=NAME",
    "--front": (
        "gdpo report FOLDER --export NUMBERS writes the end values of each variant to ends.csv"
    ),
    "--group-size": "use --columns group_size=N",
    "--high": "use --range NAME=LOWEST:HIGHEST",
    "--json": "use --output json",
    "--low": "use --range NAME=LOWEST:HIGHEST",
    "--no-report": "use --output none",
    "--report": "the page is written unless --output says otherwise",
    "influence": (
        "set the weights of the rewards. docs/how-to/choose_weights.md computes weights that "
        "give each reward a share"
    ),
    "near_duplicates": "filter the file before the run, for example with datatrove or text-dedup",
}
"""Maps a name to what replaces it: `gdpo.module.name` for an import, `--option`, a key of a recipe
or an option by name, or a command. The text follows "was removed: "."""


def absent(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have.

    A removed name is an ImportError, because `from module import name` would replace the message
    of an AttributeError.
    """
    if (instead := LEFT.get(f"{module}.{name}")) is not None:
        return ImportError(f"{module}.{name} was removed: {instead}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
