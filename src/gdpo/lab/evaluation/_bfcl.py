"""Defines the single-turn benchmarks of the Berkeley Function Calling Leaderboard (BFCL).

Rows, answers and checker come from `bfcl-eval`, which pins about fifty other packages. Therefore,
`requirements-bfcl.txt` installs it without dependencies, and only its checker is imported, with a
single entry in its table of models.

Version 2026.3.23 has V4's rows, tools and checker, and 2025.6.8 has the rows of v3, which the paper
used.

The prompt is ToolRL's, on which the paper's models were trained. A handler (`_bfcl_handlers`)
writes it and reads the calls. Calls are parsed as JSON and never executed: the checker compares
them with the reference answers. As on the leaderboard, a row that expects no call accepts any
response without a parseable call, and a row of `live_relevance` accepts any response with one.

**Format** is the task's format reward. Only calls may follow the thinking if the row expects calls,
otherwise only a response to the user. The paper does not define "Correct Format".

Multi-turn categories are in `_bfcl_multi_turn`. Memory and web search are not supported.

References:
    Patil et al. 2025, "The Berkeley Function Calling Leaderboard (BFCL)".
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Tables 1 and 2.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any

from gdpo._files import package_folder
from gdpo.errors import MissingExtraError
from gdpo.lab.evaluation._bfcl_handlers import OURS, Handler
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.tool_calling import format_reward
from gdpo.lab.tasks.tool_calling.calls import JsonObject
from gdpo.lab.tasks.tool_calling.prompt import write_completion
from gdpo.rewards import Example, Reference, Reward
from gdpo.rewards.reward import binary
from gdpo.rewards.task import Row

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
NON_LIVE = (*SIMPLE, "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
WITHOUT_ANSWER = ("irrelevance", "live_irrelevance", "live_relevance")
MULTI_TURN = (
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)
CATEGORIES = (*NON_LIVE, *LIVE, *WITHOUT_ANSWER)
"""Categories with a single turn."""

_COUNTED = {
    "v3": ((*NON_LIVE, "irrelevance"), (*LIVE, "live_irrelevance", "live_relevance")),
    "V4": (NON_LIVE, LIVE),
}
"""Categories in the Non-live average and in the Live average, by version of the leaderboard."""

VERSIONS = tuple(_COUNTED)

_LANGUAGES = {"javascript": "JavaScript", "java": "Java 8 SDK", "python": "Python 3"}

_FILES_OF_V3 = {"simple_python": "simple", "simple_java": "java", "simple_javascript": "javascript"}
"""The v3 names of categories that were renamed later."""

_MODEL = "gdpo"
"""Name of the model, as passed to the checker."""


def bfcl_task(category: str, *, handler: Handler = OURS) -> Task:
    """Return a category as a task."""
    data_file(category)
    gold = _gold_text(_EXAMPLE)
    judged = category if category not in WITHOUT_ANSWER else "simple_python"
    return Task(
        name=f"{handler.name}_{category}",
        columns=(("question", "function", "ground_truth"),),
        read_row=partial(_read_row, handler=handler),
        rewards=(
            Reward(
                name="correctness",
                function=partial(_correctness, category=category, handler=handler),
                low=0.0,
                high=1.0,
                examples=(Example(gold, _EXAMPLE, 1.0), Example("", _EXAMPLE, 0.0))
                if judged == category
                else (),
                deadline=5.0,
            ),
            binary("format", _format, scope="opened"),
        ),
        gold_completion=_gold_text,
        bad_completion="I would rather not say.",
    )


def _read_row(row: Row, handler: Handler) -> Problem:
    language = next((name for name in _LANGUAGES if name in row["id"]), "python")
    reference = {
        "function": json.dumps(row["function"]),
        "answer": None if row.get("ground_truth") is None else json.dumps(row["ground_truth"]),
        "wants_call": not str(row["id"]).startswith(("irrelevance", "live_irrelevance")),
        "language": language,
    }
    shown = [documented(function, language) for function in row["function"]]
    return Problem(handler.ask(shown, row["question"][0]), reference)


def documented(function: JsonObject, language: str) -> JsonObject:
    """Return a function as the leaderboard describes it. Java and JavaScript values are strings."""
    note = f"{function['description']} Note that the provided function is in {_LANGUAGES[language]}"
    parameters = dict(function["parameters"])
    if language != "python":
        properties = parameters["properties"].items()
        parameters["properties"] = {name: _as_text(of, language) for name, of in properties}
    return {**function, "description": f"{note} syntax.", "parameters": parameters}


def _as_text(parameter: JsonObject, language: str) -> JsonObject:
    """Return a Java or JavaScript parameter as a string, with BFCL's description."""
    shown, kind = dict(parameter), parameter["type"]
    name = _LANGUAGES[language].split()[0]
    note = f"This is {name} {kind} type parameter in string representation."
    if kind == "any":
        note = f"This parameter can be of any type of {name} object in string representation."
    if kind in ("ArrayList", "Array", "array"):
        each = shown.pop("items")["type"]
        note += f" The list elements are of type {each}; they are not in string representation."
    if kind == "dict" and "properties" in shown:
        note += (
            " The dictionary entries have the following schema; they are not in string "
            f"representation. {json.dumps(shown.pop('properties'))}"
        )
    return {**shown, "description": f"{shown['description']} {note}", "type": "string"}


def _correctness(
    completion: str, reference: Reference, *, category: str, handler: Handler
) -> float:
    calls = handler.calls(completion)
    if reference["answer"] is None:
        return float(bool(calls) == reference["wants_call"])
    if not calls:
        return 0.0
    written = [{name: dict(parameters)} for name, parameters in calls]
    checked = _checker()(
        json.loads(reference["function"]),
        written,
        json.loads(reference["answer"]),
        _language(reference["language"]),
        category,
        _MODEL,
    )
    return float(bool(checked["valid"]))


def _format(completion: str, reference: Reference) -> Any:
    return format_reward.function(completion, {"output": _gold_text(reference)})


def _gold_text(reference: Reference) -> str:
    """Return a correct response, with the first allowed value of every parameter."""
    if not reference["wants_call"]:
        return write_completion("worked out", response="None of the tools can do that.")
    if reference["answer"] is None:
        name = json.loads(reference["function"])[0]["name"]
        return write_completion("worked out", [{"name": name, "parameters": {}}])
    schemas = {f["name"]: f["parameters"] for f in json.loads(reference["function"])}
    calls = [
        {"name": name, "parameters": _chosen(parameters, schemas.get(name, {}).get("required", ()))}
        for answer in json.loads(reference["answer"])
        for name, parameters in answer.items()
    ]
    if reference["language"] != "python":
        for call in calls:
            of = schemas.get(call["name"], {}).get("properties", {})
            parameters = call["parameters"].items()
            java = reference["language"] == "java"
            call["parameters"] = {
                key: _source(v, of[key]["type"] if java else "") for key, v in parameters
            }
    return write_completion("worked out", calls)


def _chosen(parameters: JsonObject, required: Sequence[str] = ()) -> JsonObject:
    """Return one value per parameter. A parameter that allows "" is optional."""
    chosen: dict[str, Any] = {}
    for name, allowed in parameters.items():
        values = allowed if isinstance(allowed, list) else [allowed]
        given = [value for value in values if value != ""]
        if given and (name in required or len(given) == len(values)):
            chosen[name] = _unpacked(given[0])
    return chosen


def _unpacked(value: Any) -> Any:
    """Return the value, with one allowed value for each key of nested dictionaries."""
    if isinstance(value, dict):
        return _chosen(value)
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    return value


def _source(value: Any, kind: str) -> str:
    """Return a value in Java syntax (for a given type) or JavaScript syntax."""
    if isinstance(value, str):
        return f"'{value}'" if kind == "char" else value
    if kind == "HashMap":
        pairs = value.items()
        puts = " ".join(f"put({json.dumps(k)}, {json.dumps(v)});" for k, v in pairs)
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    written = json.dumps(value)
    if isinstance(value, list):  # the checker expects strings in a list without quotation marks
        written = f"[{', '.join(v if isinstance(v, str) else json.dumps(v) for v in value)}]"
    forms = {
        "ArrayList": f"new ArrayList<>(Arrays.asList({written[1:-1]}))",
        "Array": f"new Object[]{{{written[1:-1]}}}",
        "long": f"{written}L",
        "float": f"{written}f",
    }
    return forms.get(kind, written)


def data_file(category: str) -> Path:
    """Return the file with a category's rows."""
    package = package_folder("bfcl_eval")
    if package is None or find_spec("tree_sitter") is None:
        raise MissingExtraError(
            "bfcl-eval with tree_sitter, without its other dependencies "
            "(pip install --no-deps -r requirements-bfcl.txt, in a clone of gdpo),",
            None,
            "for the benchmarks bfcl_…",
        )
    data = package / "data"
    file = data / f"BFCL_v4_{category}.json"
    name = _FILES_OF_V3.get(category, category)
    return file if file.is_file() else data / f"BFCL_v3_{name}.json"


def rows_of(category: str, limit: int | None) -> list[JsonObject]:
    """Return a category's first rows. `ground_truth` is the reference answer, or None."""
    file = data_file(category)
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, limit)]
    answers: JsonObject = {}
    if (file := file.parent / "possible_answer" / file.name).is_file():
        with file.open(encoding="utf-8") as lines:
            answers = {row["id"]: row["ground_truth"] for row in map(json.loads, lines)}
    return [{**row, "ground_truth": answers.get(row["id"])} for row in rows]


def bfcl_averages(scores: Mapping[str, tuple[float, int]], version: str) -> dict[str, float]:
    """Return the leaderboard's averages for which every category has a score.

    - Non-live: unweighted mean of multiple, parallel, parallel_multiple, the mean of the three
      simple categories and, in v3, irrelevance.
    - Live: mean over the problems of its four categories and, in v3, of live_irrelevance and
      live_relevance.
    - Multi-turn: unweighted mean of its four categories.
    - Overall (v3 only): unweighted mean of the three averages above. V4's includes web search and
      memory.
    - Irrelevance (V4 only): unweighted mean of irrelevance and live_irrelevance.

    Args:
        scores: Share of correct responses and number of problems by category.
        version: One of `VERSIONS`.

    References:
        `eval_runner_helper.py` of https://github.com/ShishirPatil/gorilla at 58f96342 (v3), and of
        bfcl-eval 2026.3.23 (V4).
    """
    non_live, live = _COUNTED[version]
    share = {name: right for name, (right, _) in scores.items()}
    averages: dict[str, float] = {}
    if set(non_live) <= set(share):
        simple = fmean(share[name] for name in SIMPLE)
        averages["Non-live"] = fmean([simple, *(share[name] for name in non_live[len(SIMPLE) :])])
    if set(live) <= set(share):
        averages["Live"] = fmean(
            (share[name] for name in live), weights=[scores[name][1] for name in live]
        )
    if set(MULTI_TURN) <= set(share):
        averages["Multi-turn"] = fmean(share[name] for name in MULTI_TURN)
    if version == "v3" and len(averages) == 3:
        averages["Overall"] = fmean(averages.values())
    if version == "V4" and {"irrelevance", "live_irrelevance"} <= set(share):
        averages["Irrelevance"] = fmean([share["irrelevance"], share["live_irrelevance"]])
    return averages


@cache
def _checker() -> Any:
    table: Any = ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=False)}
    sys.modules.setdefault(table.__name__, table)
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    return ast_checker


def _language(name: str) -> Any:
    """Return the checker's value for a language: an enumeration member in V4, a string in v3."""
    if find_spec("bfcl_eval.constants.enums") is None:
        return _LANGUAGES[name].split()[0]
    from bfcl_eval.constants.enums import Language

    return Language[name.upper()]


_EXAMPLE: Reference = {
    "function": json.dumps(
        [
            {
                "name": "f",
                "description": "",
                "parameters": {
                    "type": "dict",
                    "properties": {"x": {"type": "integer"}},
                    "required": ["x"],
                },
            }
        ]
    ),
    "answer": json.dumps([{"f": {"x": [1]}}]),
    "wants_call": True,
    "language": "python",
}
