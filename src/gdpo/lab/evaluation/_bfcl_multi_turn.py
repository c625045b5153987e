"""Defines the multi-turn benchmarks of the Berkeley Function Calling Leaderboard.

The user sends one request per turn. In each turn, the model calls tools and reads their results, up
to 20 times, until it writes a message without a parseable call. A handler writes every prompt:
ToolRL's, with the dialogue so far. At the end, the checker executes the model's calls and the row's
reference calls. After each turn, the tools must have the same state in both executions, and the
results of the model's calls must include those of the reference calls.

**Format** is the share of the model's messages that pass the task's format reward. A message with a
call must follow the call format, any other the response format.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

from gdpo.lab.evaluation._bfcl import MULTI_TURN, data_file, documented
from gdpo.lab.evaluation._bfcl_handlers import OURS, Handler, as_python, fresh_tools, run_tools
from gdpo.lab.evaluation.responders import OnResponses, Responder, Response, ignore
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.tool_calling import format_reward
from gdpo.lab.tasks.tool_calling.calls import JsonObject, parse
from gdpo.lab.tasks.tool_calling.prompt import write_completion
from gdpo.rewards import Reference, Reward
from gdpo.rewards.task import Row


@dataclass(slots=True)
class Talk:
    """Stores one conversation."""

    problem: Problem
    answers: list[Response] = field(default_factory=list)
    """The model's messages."""
    asked: Problem | None = None
    """The last prompt."""


NextPrompts: TypeAlias = Callable[[Sequence[Talk]], list[Problem | None]]
"""Function that returns the next prompt of each conversation. None: the conversation has ended."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Responds to each problem with a conversation."""

    one: Responder
    next_prompts: NextPrompts

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: OnResponses = ignore
    ) -> list[list[Response]]:
        """Return each problem's conversations. All run concurrently."""
        talks = [Talk(problem) for problem in problems for _ in range(samples)]
        live, begun = talks, seed
        while live:
            asked = self.next_prompts(live)
            for talk, question in zip(live, asked, strict=True):
                talk.asked = question or talk.asked
            heard(sum(question is None for question in asked))
            live = [talk for talk, question in zip(live, asked, strict=True) if question]
            prompts = [question for question in asked if question]
            for talk, said in zip(live, self.one.respond(prompts, begun, 1), strict=True):
                talk.answers += said
            begun += 1_000_003  # each message has its own seed
        whole = [_response(talk) for talk in talks]
        return [whole[i : i + samples] for i in range(0, len(whole), samples)]


def _response(talk: Talk) -> Response:
    truncated = any(answer.finish_reason == "length" for answer in talk.answers)
    last = talk.asked.prompt if talk.asked else []
    return Response(
        text=json.dumps([answer.opened + answer.text for answer in talk.answers]),
        num_tokens=sum(answer.num_tokens for answer in talk.answers),
        finish_reason="length" if truncated else "stop",
        shown=(*last, *({"role": "assistant", "content": a.text} for a in talk.answers[-1:])),
    )


def messages_of(completion: str) -> list[str]:
    """Return the model's messages in a conversation. Empty for any other text."""
    try:
        said = json.loads(completion)
    except (ValueError, RecursionError):
        return []
    return said if isinstance(said, list) and all(isinstance(s, str) for s in said) else []


MOST_STEPS = 20
"""Maximum number of messages with calls in one turn. A response that exceeds this number in any
turn counts as wrong, as on the leaderboard."""

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
"""Names of the files that describe the tools of each class."""


def multi_turn_task(category: str, *, handler: Handler = OURS) -> Task:
    """Return a category as a task whose completions are conversations."""
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


def next_prompts(talks: Sequence[Talk], *, handler: Handler) -> list[Problem | None]:
    """Run the tools, and return the next prompt of each conversation."""
    said = [[answer.text for answer in talk.answers] for talk in talks]
    turns = [split_turns(messages, handler) for messages in said]
    played: list[JsonObject] = []
    for talk, of_talk in zip(talks, turns, strict=True):
        entry = json.loads(talk.problem.reference["entry"])
        steps = [step for turn in _decoded(entry, of_talk, handler) for step in turn]
        played.append({"entry": entry, "steps": steps})
    answered = run_tools(played)
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
    """Split messages into turns. A message without a parseable call ends its turn.

    The last turn is unfinished, and empty if the previous turn has just ended.
    """
    turns: list[list[str]] = [[]]
    for message in messages:
        turns[-1].append(message)
        if not handler.runs(message):
            turns.append([])
    return turns


def _decoded(
    entry: JsonObject, turns: Sequence[Sequence[str]], handler: Handler
) -> list[list[list[str]]]:
    """Return each turn's calls as text for BFCL. Skip messages without a call."""
    known = [tool["name"] for tool in _tools(entry)]
    return [
        [as_python(calls, known) for message in turn if (calls := handler.runs(message))]
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
    entry: JsonObject,
    questions: Sequence[Sequence[Mapping[str, str]]],
    turns: Sequence[Sequence[str]],
    answers: Sequence[Sequence[str]],
    handler: Handler,
) -> list[Mapping[str, str]]:
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


def _listed(entry: JsonObject, turn: int, handler: Handler) -> list[JsonObject]:
    held_back = {
        name
        for since, names in entry["missed_function"].items()
        if int(since) > turn or not handler.lists_new_tools
        for name in names
    }
    return [documented(t, "python") for t in _tools(entry) if t["name"] not in held_back]


def _news(entry: JsonObject, turn: int, handler: Handler) -> str:
    """Return BFCL's user message that announces new tools."""
    from bfcl_eval.constants import default_prompts

    if handler.lists_new_tools:
        return default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    names = entry["missed_function"][str(turn)]
    new = [tool for name in names for tool in _tools(entry) if tool["name"] == name]
    text = default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
    return text.format(functions=new)


def _tools(entry: JsonObject) -> list[JsonObject]:
    return [tool for name in entry["involved_classes"] for tool in _described(name)]


@cache
def _described(class_name: str) -> list[JsonObject]:
    folder = data_file(MULTI_TURN[0]).parent / "multi_turn_func_doc"
    with (folder / f"{_DOCUMENTS[class_name]}.json").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _correctness(completion: str, reference: Reference, *, handler: Handler) -> float:
    entry, answer = json.loads(reference["entry"]), json.loads(reference["answer"])
    turns = split_turns(messages_of(completion), handler)[:-1]
    if len(turns) != len(answer):
        return 0.0
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    with fresh_tools() as name:
        decoded = _decoded(entry, turns, handler)
        checked = multi_turn_checker(decoded, answer, entry, entry["id"], name)
    return float(bool(checked["valid"]))


_GOLD_CALLS = write_completion("worked out", [{"name": "f", "parameters": {}}])
_GOLD_RESPONSE = write_completion("worked out", response="Done.")


def _format(completion: str, _reference: Reference) -> float:
    scores: list[Any] = []
    for message in messages_of(completion):
        gold = _GOLD_CALLS if "tool_call" in parse(message).fields else _GOLD_RESPONSE
        scores.append(format_reward.function(message, {"output": gold}))
    return sum(scores) / len(scores) if scores else 0.0


def _gold_message(reference: Reference) -> str:
    """Return the next correct message: all calls of the turn at once, then a response."""
    turn, step = reference.get("turn", 0), reference.get("step", 0)
    calls = json.loads(reference["answer"])[turn]
    if step > 0 or not calls:
        return _GOLD_RESPONSE
    tools = {tool["name"]: tool for tool in _tools(json.loads(reference["entry"]))}
    return write_completion("worked out", [_as_json(call, tools) for call in calls])


def _as_json(call: str, tools: JsonObject) -> JsonObject:
    """Return a reference call, which is Python text, as JSON with argument names."""
    node: Any = ast.parse(call, mode="eval").body
    names = list(tools[node.func.id]["parameters"]["properties"])
    parameters = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
    parameters |= {each.arg: ast.literal_eval(each.value) for each in node.keywords}
    return {"name": node.func.id, "parameters": parameters}
