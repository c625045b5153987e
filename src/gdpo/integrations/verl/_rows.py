"""verl's names of rows: which rows are one rollout."""

from collections.abc import Sequence


def last_outputs(keys: Sequence[str]) -> list[int]:
    """For each row, the row of the last output of its rollout.

    Args:
        keys: As verl names rows: `<prompt>_<rollout>_<output>`, with a number for each output.
    """
    parts = [key.rpartition("_") for key in keys]
    last: dict[str, int] = {}
    for row, (rollout, _, output) in enumerate(parts):
        if rollout not in last or int(output) > int(parts[last[rollout]][2]):
            last[rollout] = row
    return [last[rollout] for rollout, _, _ in parts]
