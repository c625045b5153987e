"""Findings that last: one batch may be unlucky, several in a row are not."""

from collections import Counter
from collections.abc import Iterable

from gdpo.diagnostics._finding import Finding, Kind, Severity

_Key = tuple[Kind, tuple[str, ...]]


class Watch:
    """Tells each warning once, when it has held for several batches in a row.

    Args:
        batches: How many in a row.

    Example:
        >>> watch = Watch(batches=2)
        >>> warning = Finding(Kind.DROWNED, Severity.WARNING, ("format",), "…", "…", {})
        >>> [len(watch.update([warning])) for _ in range(3)]
        [0, 1, 0]
    """

    def __init__(self, batches: int = 5) -> None:
        self.batches = batches
        self._held: Counter[_Key] = Counter()
        self._told: set[_Key] = set()

    def update(self, findings: Iterable[Finding]) -> list[Finding]:
        """The warnings among one batch's findings that are due now."""
        now = {(f.kind, f.rewards): f for f in findings if f.severity is Severity.WARNING}
        self._held = Counter({key: self._held[key] + 1 for key in now})
        due = [
            key
            for key, held in self._held.items()
            if held >= self.batches and key not in self._told
        ]
        self._told.update(due)
        return [now[key] for key in due]
