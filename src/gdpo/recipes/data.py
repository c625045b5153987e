"""The rows of a run: of one source or several, without those that repeat others."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gdpo.recipes.recipe import DataConfig
from gdpo.tasks import Problem, Task, load_problems, near_duplicates


@dataclass(frozen=True, slots=True)
class Rows:
    """What was read, in the order of the sources."""

    problems: tuple[Problem, ...]
    places: tuple[str, ...]
    """Where each problem stands: `row 3 of train.jsonl`."""
    read: dict[str, int]
    """Rows read, by source."""
    repeated: dict[str, int]
    """Rows left out because they repeat an earlier one, by source; empty: none, or not looked
    for."""
    too_long: int = 0
    """Rows left out because their prompt has more tokens than `data.max_prompt_length`."""

    @property
    def left_out(self) -> str | None:
        """What was left out, in words; None where nothing was."""
        told: list[str] = []
        if self.repeated:
            of = ", ".join(f"{count:,} of {source}" for source, count in self.repeated.items())
            total = sum(self.repeated.values())
            told.append(
                f"{total:,} near-duplicates left out ({of}); data.near_duplicates: keep takes them"
            )
        if self.too_long:
            told.append(f"{self.too_long:,} longer than data.max_prompt_length left out")
        return "; ".join([*told, f"{len(self.problems):,} rows remain"]) if told else None

    def no_longer_than(self, limit: int, lengths: Sequence[int]) -> "Rows":
        """Leave out rows with long prompts.

        Args:
            limit: Tokens that a prompt may have.
            lengths: Tokens of the prompt of each problem.
        """
        kept = [i for i, length in enumerate(lengths) if length <= limit]
        return replace(
            self,
            problems=tuple(self.problems[i] for i in kept),
            places=tuple(self.places[i] for i in kept),
            too_long=len(lengths) - len(kept),
        )


def read_data(task: Task, data: DataConfig) -> Rows:
    """Read every source through the task, and leave out near-duplicates where that is asked for.

    Args:
        task: What reads the rows.
        data: Of the recipe.

    Raises:
        DataError: As for `gdpo.tasks.load_problems`; it names the source.
        MissingExtraError: A source is on the Hub, and `datasets` is not installed.
    """
    problems: list[Problem] = []
    sources: list[str] = []
    places: list[str] = []
    for source in data.sources:
        found = load_problems(task, source, subset=data.subset, split=data.split, limit=data.limit)
        problems += found
        sources += [source] * len(found)
        places += [f"row {number} of {source}" for number in range(1, len(found) + 1)]
    read, kept = dict(Counter(sources)), range(len(problems))
    repeated: dict[str, int] = {}
    if data.drops_near_duplicates:
        like = near_duplicates(problems)
        kept = [i for i in kept if like[i] is None]
        repeated = dict(Counter(sources[i] for i, other in enumerate(like) if other is not None))
    return Rows(tuple(problems[i] for i in kept), tuple(places[i] for i in kept), read, repeated)


def digest_of(problems: Iterable[Problem]) -> str:
    """Twelve hex digits that name these prompts and references, in this order."""
    digest = hashlib.sha256()
    for problem in problems:
        row = [problem.prompt, dict(problem.reference)]
        text = json.dumps(row, default=lambda value: type(value).__name__)
        digest.update(text.encode("utf-8", "replace") + b"\n")
    return digest.hexdigest()[:12]
