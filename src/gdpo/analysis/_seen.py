"""What values each reward has had in a run: the next best thing where its range is not declared."""

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from gdpo.diagnostics import Diagnosis, Finding, Thresholds
from gdpo.diagnostics.diagnosis import Kind, Severity
from gdpo.rollouts.readers import RolloutTable


@dataclass(slots=True)
class Seen:
    """The lowest and the highest value of each reward so far, run by run."""

    _values: dict[tuple[str, str], tuple[float, float]] = field(
        default_factory=dict[tuple[str, str], tuple[float, float]]
    )

    def judged(self, table: RolloutTable, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis with a note for each reward that is constant at its highest so far.

        Such a reward is probably learned. Where its range is known, the diagnosis has told already.

        Args:
            table: The next rollouts of the run.
            diagnosis: What was found in them.
        """
        for name, values in zip(table.names, table.rewards.T, strict=True):
            known = values[~np.isnan(values)]
            low, high = self._values.get((table.run, name), (inf, -inf))
            self._values[table.run, name] = (
                float(np.min(known, initial=low)),
                float(np.max(known, initial=high)),
            )
        found = (self._judged(finding, diagnosis, table.run) for finding in diagnosis.findings)
        return replace(diagnosis, findings=tuple(found))

    def _judged(self, finding: Finding, diagnosis: Diagnosis, run: str) -> Finding:
        if finding.kind is not Kind.CONSTANT or "saturation" in finding.evidence:
            return finding
        (reward,) = (each for each in diagnosis.rewards if each.name in finding.rewards)
        low, high = self._values[run, reward.name]
        if reward.mean is None or reward.weight < 0 or low >= high:
            return finding
        if (reward.mean - low) / (high - low) < Thresholds().top:
            return finding
        message = f"{finding.message}. It was never higher in this run: probably it is learned"
        return replace(finding, severity=Severity.NOTE, message=message)
