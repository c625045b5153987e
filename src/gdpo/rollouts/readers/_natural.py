"""Records of no known format: a rollout for each, by what its fields mean."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gdpo.rollouts.readers._inference import is_container
from gdpo.rollouts.readers._layout import Inner, Layout, at
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._rows import Row, numbers_in

_DEEPEST = 8
"""Objects one in another that are looked into."""


def rows_by(known: Layout) -> Callable[[Record], Iterator[Row]]:
    """A format of records for lines of JSON whose fields mean what was said or inferred."""
    taken = known.taken()

    def rows(record: Record) -> Iterator[Row]:
        yield Row(
            step=at(record, known.step),
            group=at(record, known.group),
            prompt=at(record, known.prompt),
            completion=at(record, known.completion),
            rewards=numbers_by_path(record, but=taken),
            total=at(record, known.total),
            total_name=known.total or "reward",
            advantage=at(record, known.advantage),
            num_tokens=at(record, known.num_tokens),
            finish_reason=at(record, known.finish_reason),
            extras={k: v for k, v in record.items() if k not in taken},
        )

    return rows


def numbers_by_path(record: Record, *, but: frozenset[str]) -> dict[str, Any]:
    """The numbers of a record and of the objects in it, and what may be one, by path.

    Of texts those that stand beside rewards: at the top, and in objects whose name says rewards.
    """
    found = numbers_in(record, but=but)
    for name, value in record.items():
        if isinstance(value, dict) and name not in but:
            _enter(value, name, but, found, rewarded=is_container(name))
    return found


def _enter(
    inner: Mapping[Any, Any],
    above: str,
    but: frozenset[str],
    found: dict[str, Any],
    *,
    rewarded: bool,
    depth: int = 1,
) -> None:
    """Add what stands in an object, and in those in it: `rewarded` if one of them says rewards."""
    for name, value in numbers_in(inner, but=frozenset()).items():
        path = Inner(f"{above}.{name}")
        if path not in but and (rewarded or isinstance(value, (int, float))):
            found[path] = value
    for name, value in inner.items() if depth < _DEEPEST else ():
        path = f"{above}.{name}"
        if isinstance(value, dict) and path not in but:
            inside = rewarded or is_container(str(name))
            _enter(value, path, but, found, rewarded=inside, depth=depth + 1)
