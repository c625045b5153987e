"""The Berkeley Function Calling Leaderboard, several turns: tools with a state, and its checker.

A user asks in turns. In each the model calls tools and reads what they give back, as often as it
likes (20 times at most), until it writes a message without a readable call: then comes the next
turn. Every prompt is ToolRL's, with the dialogue so far in it, as a handler writes it. In the end
the checker plays the model's calls and the row's own side by side: after each turn the tools must
be in the same state, and must have told the model whatever they told the row's own calls.

**Format**: the share of the model's messages with the format reward of the task, as a message of
the kind it is: calls, or a response.

References:
    Patil et al. 2025, "The Berkeley Function Calling Leaderboard (BFCL)".
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any, TypeAlias

from gdpo.evaluation._bfcl import MULTI_TURN, data_file, documented, possible_answers
from gdpo.evaluation._bfcl_handlers import OURS, Handler, fresh_tools, run_tools, written
from gdpo.evaluation.responders import OnResponses, Responder, Response, ignore
from gdpo.rewards import Reference, Reward
from gdpo.tasks import Problem, Task
from gdpo.tasks.task import Row
from gdpo.tasks.tool_calling import format_reward
from gdpo.tasks.tool_calling.parsing import parse
from gdpo.tasks.tool_calling.prompt import write_completion


@dataclass(slots=True)
class Talk:
    """One conversation."""

    problem: Problem
    answers: list[Response] = field(default_factory=list[Response])
    """What the model said, message by message."""
    asked: Problem | None = None
    """What was asked last."""


GoOn: TypeAlias = Callable[[Sequence[Talk]], list[Problem | None]]
"""The next thing to ask in each conversation; None: it is over."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Answers each problem with a conversation.

    Args:
        one: Responds to each prompt.
        go_on: What is asked next.
    """

    one: Responder
    go_on: GoOn

    def respond(
        self,
        problems: Sequence[Problem],
        seed: int,
        samples: int,
        on_responses: OnResponses = ignore,
    ) -> list[list[Response]]:
        """The conversations about each problem, all of them side by side."""
        talks = [Talk(problem) for problem in problems for _ in range(samples)]
        live, begun = talks, seed
        while live:
            asked = self.go_on(live)
            for talk, question in zip(live, asked, strict=True):
                talk.asked = question or talk.asked
            on_responses(sum(question is None for question in asked))
            live = [talk for talk, question in zip(live, asked, strict=True) if question]
            prompts = [question for question in asked if question]
            for talk, said in zip(live, self.one.respond(prompts, begun, 1), strict=True):
                talk.answers += said
            begun += 1_000_003  # no message draws what another one drew
        whole = [_response(talk) for talk in talks]
        return [whole[i : i + samples] for i in range(0, len(whole), samples)]


def _response(talk: Talk) -> Response:
    cut = any(answer.finish_reason == "length" for answer in talk.answers)
    last = talk.asked.prompt if talk.asked else []
    return Response(
        text=json.dumps([answer.text for answer in talk.answers]),
        num_tokens=sum(answer.num_tokens for answer in talk.answers),
        finish_reason="length" if cut else "stop",
        shown=(*last, *({"role": "assistant", "content": a.text} for a in talk.answers[-1:])),
    )


def messages_of(completion: str) -> list[str]:
    """The model's messages of a conversation; nothing where the text is none."""
    try:
        said = json.loads(completion)
    except (ValueError, RecursionError):
        return []
    return said if isinstance(said, list) and all(isinstance(s, str) for s in said) else []


MOST_STEPS = 20
"""Messages with calls in one turn; with more of them the row is lost, as on the leaderboard."""

_CHECK_S = 30.0

_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Where the tools of a class are described."""


def multi_turn_problems(
    category: str, limit: int | None, *, handler: Handler = OURS
) -> list[Problem]:
    """The rows of a category; each prompt is that of the first turn.

    Args:
        category: One of `MULTI_TURN`.
        limit: The first so many rows; None: all.
        handler: Writes the prompts.

    Raises:
        MissingExtraError: The package is not installed.
    """
    answers = possible_answers(category)
    with data_file(category).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, limit)]
    return [_read_row({**row, "ground_truth": answers[row["id"]]}, handler) for row in rows]


def multi_turn_task(category: str, *, handler: Handler = OURS) -> Task:
    """A category as a task, whose completions are conversations.

    Args:
        category: One of `MULTI_TURN`.
        handler: Writes the prompts and reads the calls.

    Raises:
        MissingExtraError: The package is not installed.
    """
    data_file(category)
    return Task(
        name=f"{handler.name}_{category}",
        columns=(("question", "ground_truth"),),
        read_row=partial(_read_row, handler=handler),
        rewards=(
            Reward(
                name="correctness",
                function=partial(_correctness, handler=handler),
                low=0.0,
                high=1.0,
                deadline=_CHECK_S,
            ),
            Reward(name="format", function=_format, low=0.0, high=1.0),
        ),
        gold_completion=_gold_message,
        bad_completion="I would rather not say.",
    )


def go_on(talks: Sequence[Talk], *, handler: Handler = OURS) -> list[Problem | None]:
    """The next prompt of each conversation, once the tools have answered."""
    said = [[answer.text for answer in talk.answers] for talk in talks]
    turns = [split_turns(messages, handler) for messages in said]
    answered = run_tools([_played(*each, handler) for each in zip(talks, turns, strict=True)])
    return [_ask(*each, handler) for each in zip(talks, turns, answered, strict=True)]


def _read_row(row: Row, handler: Handler) -> Problem:
    entry = {key: row[key] for key in ("id", "initial_config", "involved_classes")}
    entry["missed_function"] = row.get("missed_function", {})
    reference = {
        "entry": json.dumps(entry),
        "questions": json.dumps(row["question"]),
        "answer": json.dumps(row["ground_truth"]),
    }
    dialogue = _dialogue(entry, row["question"], [[]], [], handler)
    return Problem(handler.ask_in_turns(_listed(entry, 0, handler), dialogue), reference)


def split_turns(messages: Sequence[str], handler: Handler = OURS) -> list[list[str]]:
    """Messages in turns: one without a readable call ends its turn.

    Returns:
        The last turn is the one that goes on, with no message yet if the one before has ended.
    """
    turns: list[list[str]] = [[]]
    for message in messages:
        turns[-1].append(message)
        if not handler.runs(message):
            turns.append([])
    return turns


def _played(talk: Talk, turns: Sequence[Sequence[str]], handler: Handler) -> dict[str, Any]:
    entry = json.loads(talk.problem.reference["entry"])
    steps = [step for turn in _decoded(entry, turns, handler) for step in turn]
    return {"entry": entry, "steps": steps}


def _decoded(
    entry: Mapping[str, Any], turns: Sequence[Sequence[str]], handler: Handler
) -> list[list[list[str]]]:
    """The calls of each turn's messages as BFCL evaluates them; messages without any left out."""
    known = [tool["name"] for tool in _tools(entry)]
    return [
        [written(calls, known) for message in turn if (calls := handler.runs(message))]
        for turn in turns
    ]


def _ask(
    talk: Talk, turns: list[list[str]], answers: Sequence[Sequence[str]], handler: Handler
) -> Problem | None:
    reference = talk.problem.reference
    questions = json.loads(reference["questions"])
    if len(turns) > len(questions) or len(turns[-1]) > MOST_STEPS:
        return None
    entry, turn = json.loads(reference["entry"]), len(turns) - 1
    dialogue = _dialogue(entry, questions, turns, answers, handler)
    place = {**reference, "turn": turn, "step": len(turns[-1])}
    return Problem(handler.ask_in_turns(_listed(entry, turn, handler), dialogue), place)


def _dialogue(
    entry: Mapping[str, Any],
    questions: Sequence[Sequence[Mapping[str, str]]],
    turns: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    handler: Handler,
) -> list[Mapping[str, str]]:
    """All that was said so far, and what the tools gave back."""
    given = iter(answers)
    dialogue: list[Mapping[str, str]] = []
    for number, (question, messages) in enumerate(zip(questions, turns, strict=False)):
        dialogue += question or [{"role": "user", "content": _news(entry, number, handler)}]
        for message in messages:
            dialogue.append({"role": "assistant", "content": message})
            if calls := handler.runs(message):
                results = handler.tool_messages(calls, next(given))
                dialogue += [{"role": "tool", "content": each} for each in results]
    return dialogue


def _listed(entry: Mapping[str, Any], turn: int, handler: Handler) -> list[dict[str, Any]]:
    """The tools as they are listed in a turn."""
    held_back = {
        name
        for since, names in entry["missed_function"].items()
        if int(since) > turn or not handler.lists_new_tools
        for name in names
    }
    return [documented(t, "python") for t in _tools(entry) if t["name"] not in held_back]


def _news(entry: Mapping[str, Any], turn: int, handler: Handler) -> str:
    """What BFCL's user says when tools that were held back are there."""
    from bfcl_eval.constants import default_prompts

    prompts: Any = default_prompts
    if handler.lists_new_tools:
        return prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    names = entry["missed_function"][str(turn)]
    new = [tool for name in names for tool in _tools(entry) if tool["name"] == name]
    return prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING.format(functions=new)


def _tools(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [tool for name in entry["involved_classes"] for tool in _described(name)]


@cache
def _described(class_name: str) -> list[dict[str, Any]]:
    folder = data_file(MULTI_TURN[0]).parent / "multi_turn_func_doc"
    with (folder / f"{_DOCUMENTS[class_name]}.json").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _correctness(completion: str, reference: Reference, *, handler: Handler) -> float:
    """1 if BFCL's checker finds every turn right, else 0."""
    entry, answer = json.loads(reference["entry"]), json.loads(reference["answer"])
    turns = split_turns(messages_of(completion), handler)[:-1]
    if len(turns) != len(answer):
        return 0.0
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (
        multi_turn_checker,
    )

    check: Any = multi_turn_checker
    with fresh_tools() as name:
        checked = check(_decoded(entry, turns, handler), answer, entry, entry["id"], name)
    return float(bool(checked["valid"]))


def _format(completion: str, _reference: Reference) -> float:
    messages = messages_of(completion)
    scores = [_well_formed(message) for message in messages]
    return sum(scores) / len(scores) if scores else 0.0


_GOLD_CALLS = write_completion("worked out", [{"name": "f", "parameters": {}}])
_GOLD_RESPONSE = write_completion("worked out", response="Done.")


def _well_formed(message: str) -> Any:
    kind = _GOLD_CALLS if "tool_call" in parse(message).fields else _GOLD_RESPONSE
    return format_reward.function(message, {"output": kind})


def _gold_message(reference: Reference) -> str:
    """What is right to write next: all calls of the turn at once, then a response."""
    turn, step = reference.get("turn", 0), reference.get("step", 0)
    calls = json.loads(reference["answer"])[turn]
    if step > 0 or not calls:
        return write_completion("worked out", response="Done.")
    tools = {tool["name"]: tool for tool in _tools(json.loads(reference["entry"]))}
    return write_completion("worked out", [_as_json(call, tools) for call in calls])


def _as_json(call: str, tools: Mapping[str, Any]) -> dict[str, Any]:
    """A call of the row's own, which is Python, with the names of its arguments."""
    node: Any = ast.parse(call, mode="eval").body
    names = list(tools[node.func.id]["parameters"]["properties"])
    parameters = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
    parameters |= {each.arg: ast.literal_eval(each.value) for each in node.keywords}
    return {"name": node.func.id, "parameters": parameters}
