"""Problems that take several messages: what was said decides what is asked next."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gdpo.evaluation._responders import Heard, Responder, Response, nobody
from gdpo.tasks import Problem


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
        self, problems: Sequence[Problem], seed: int, samples: int, heard: Heard = nobody
    ) -> list[list[Response]]:
        """The conversations about each problem, all of them side by side."""
        talks = [Talk(problem) for problem in problems for _ in range(samples)]
        live, begun = talks, seed
        while live:
            asked = self.go_on(live)
            for talk, question in zip(live, asked, strict=True):
                talk.asked = question or talk.asked
            heard(sum(question is None for question in asked))
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
