"""Reads recorded completions of a recipe's problems, to attack the recipe with real failures."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdpo.analysis.rescore import completions_of
from gdpo.errors import DataError
from gdpo.lab.tasks import Problem
from gdpo.lab.tasks.lazy import tokens_in
from gdpo.rewards.reward import Messages
from gdpo.rewards.text import completion_text, from_file, prompt_text
from gdpo.rollouts.readers import RolloutText, read_rollout_files, read_texts

_MOST = 20_000
"""After this number of rollouts, no further step is read."""


_NAMED = 3
"""Maximum number of problems with the files that an error lists."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Stores a completion from a rollout file."""

    completion: str | Messages
    num_tokens: int

    @property
    def text(self) -> str:
        """Return the model's text in the completion."""
        return completion_text(self.completion)


def recorded_completions(path: Path, problems: Sequence[Problem]) -> dict[int, list[Recorded]]:
    """Return the recorded completions of each problem, keyed by the index of the problem.

    A rollout belongs to the problem whose last message is contained in the rollout's prompt. If
    there are several such problems, the longest message counts.

    Args:
        path: A rollout file or a folder of rollout files, of any framework.
        problems: The recipe's rows.

    Raises:
        DataError: If the files cannot be read, or no rollout belongs to a problem.
    """
    asked = {p.prompt[-1]["content"]: i for i, p in reversed([*enumerate(problems)]) if p.prompt}
    known: dict[str, int | None] = {}
    found: defaultdict[int, list[Recorded]] = defaultdict(list)
    texts = _texts(path)
    prompts = from_file([each.prompt for each in texts])
    for each, asking, completion in zip(texts, prompts, completions_of(texts), strict=True):
        if asking is None or completion is None:
            continue
        prompt = prompt_text(asking)
        if prompt not in known:
            known[prompt] = _problem_of(prompt, asked)
        place = known[prompt]
        if place is not None:
            count = each.num_tokens
            tokens = tokens_in(completion_text(completion)) if count is None else int(count)
            found[place].append(Recorded(completion, tokens))
    if not found:
        raise DataError(
            f"{path}: none of the {len(texts):,} rollouts belongs to a row of the recipe. The "
            "prompt of a rollout must contain the row's question. Pass rollouts of the same data, "
            "or leave out --rollouts"
        )
    return dict(found)


def _problem_of(prompt: str, asked: dict[str, int]) -> int | None:
    if prompt in asked:
        return asked[prompt]
    inside = [question for question in asked if question and question in prompt]
    return asked[max(inside, key=len)] if inside else None


def _texts(path: Path) -> list[RolloutText]:
    """Return the texts of the first rollouts, reading each file once.

    Raises:
        DataError: If there are no rollouts.
    """
    rows: defaultdict[Path, list[int]] = defaultdict(list)
    count = 0
    tables = read_rollout_files(path)
    for table in tables:
        for place, row in zip(table.file.tolist(), table.row.tolist(), strict=True):
            rows[table.files[place]].append(row)
        count += len(table)
        if count >= _MOST:
            break
    if not count:
        found = "; ".join(tables.report.oddities()[:_NAMED]) or "it holds no rows"
        raise DataError(
            f"{path}: no rollout can be read ({found}). Pass rollout files that `gdpo analyze` can "
            "read, or leave out --rollouts"
        )
    return [text for file, some in rows.items() for text in read_texts(file, some)]
