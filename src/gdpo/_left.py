"""Lists the names that this version removed, and what replaces each of them.

So a message can distinguish a removed name from a typing error. An entry stays for one version.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_ENDS = "gdpo report FOLDER --export NUMBERS writes the end values of each variant to ends.csv"
_FILTER = "filter the file before the run, for example with datatrove or text-dedup"
_UPLOAD = "upload the folder model/ and README.md of a run with hf upload"

MOVED: dict[str, str] = {
    "gdpo.advantages.contrib": "import its names from gdpo.advantages",
    "gdpo.demo": "run gdpo init FOLDER, and gdpo compare recipe.yaml in it",
    "gdpo.evaluation": "import gdpo.lab.evaluation",
    "gdpo.experiments": "import gdpo.lab.experiments. Toys: python -m benchmarks.toys",
    "gdpo.integrations.ms_swift": "copy examples/adapters/ms_swift.py",
    "gdpo.integrations.rllm": "copy examples/adapters/rllm.py",
    "gdpo.integrations.slime": "copy examples/adapters/slime.py",
    "gdpo.integrations.tunix": "copy examples/adapters/tunix.py",
    "gdpo.launch": "import gdpo.lab.launch",
    "gdpo.recipes": "import gdpo.lab.recipes",
    "gdpo.rewards.code": "import gdpo.lab.rewards.code",
    "gdpo.runs": "import gdpo.lab.runs",
    "gdpo.sandbox": "import gdpo.lab.sandbox",
    "gdpo.tasks": "import gdpo.lab.tasks",
    "gdpo.training": "import gdpo.lab.training",
}
"""Maps a module to what replaces it."""

LEFT: dict[str, str] = {
    "gdpo.analysis.analyze_runs": "use analyze(reading).runs",
    "gdpo.integrations.trl.record_rollouts": "use watch(trainer, rollouts_dir=...)",
    "gdpo.lab.evaluation.Settings": "import EvaluationSettings",
    "gdpo.lab.report.front_summary": (
        "write_report(export=...) writes the end values of each variant to ends.csv"
    ),
    "gdpo.lab.tasks.near_duplicates": _FILTER,
    "gdpo.priority.smallest_weight": "use priority(Combination(...), values, primary).smallest",
    "gdpo.report.summary": "import it from gdpo.lab.report",
    "gdpo.report.write_report": "import it from gdpo.lab.report",
    "gdpo.rollouts.readers.Turns": "import TableTurns",
    "gdpo demo": "run gdpo init FOLDER, and gdpo compare recipe.yaml in it",
    "gdpo push": _UPLOAD,
    "analyze --format": "use --columns format=NAME",
    "analyze --group-size": "use --columns group_size=N",
    "analyze --high": "use --range NAME=LOWEST:HIGHEST",
    "analyze --json": "use --output json",
    "analyze --low": "use --range NAME=LOWEST:HIGHEST",
    "analyze --no-report": "use --output none",
    "analyze --report": "the page is written unless --output says otherwise",
    "compare --front": _ENDS,
    "compare --suite": "run python -m benchmarks.toys in a clone",
    "evaluate --push": _UPLOAD,
    "influence": (
        "set the weights of the rewards. research/requested_influence.md computes weights that "
        "give each reward a share"
    ),
    "near_duplicates": _FILTER,
    "report --front": _ENDS,
}
"""Maps a name to what replaces it: `gdpo.module.name` for an import, `gdpo verb`, `verb --option`,
or a key of a recipe or an option by name. The text follows "was removed: "."""


def absent(module: str, name: str) -> Exception:
    """Return the error for a name that a module does not have.

    A removed name is an ImportError, because `from module import name` would replace the message
    of an AttributeError.
    """
    if (instead := LEFT.get(f"{module}.{name}")) is not None:
        return ImportError(f"{module}.{name} was removed: {instead}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class _Moved(MetaPathFinder):
    """Says, for the import of a removed module, what replaces it.

    It is the last finder, so it is asked only for modules that do not exist. The error has no
    `name`: `from gdpo import module` would replace its message otherwise.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  signature of MetaPathFinder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        if (instead := MOVED.get(fullname)) is not None:
            raise ModuleNotFoundError(f"{fullname} was removed: {instead}")


sys.meta_path.append(_Moved())
