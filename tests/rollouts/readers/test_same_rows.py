"""The rows of a run read equal in every kind of file, also if its files name different rewards."""

import numpy as np
import pytest
from tests.rollouts.readers import written

from gdpo.rollouts.readers import read_rollout_files

NAMES = ("a_reward", "b_reward", "c_reward")


def drawn(seed):
    """Return the rows of each file: a step that names some of the rewards, and maybe a total."""
    rng = np.random.default_rng(seed)
    there = rng.random((4, len(NAMES))) < 0.6
    there[:, 0] |= ~there.any(axis=1)
    files = rng.normal(size=(4, 6, len(NAMES))).round(3)
    for step, (rows, has) in enumerate(zip(files, there, strict=True)):
        totals = {"total_reward": rows[:, has] @ (1.0 + np.flatnonzero(has))} if seed % 2 else {}
        columns = dict(zip(np.array(NAMES)[has], rows[:, has].T, strict=True)) | totals
        places = [{"step": step, "prompt": f"q{step} {place // 3}"} for place in range(len(rows))]
        yield [
            {**place, **{name: float(values[i]) for name, values in columns.items()}}
            for i, place in enumerate(places)
        ]


def by_name(table):
    """Return the values and the weights of each reward, which may be in any order."""
    weights = None if table.weights is None else table.weights.T
    return {
        name: (table.rewards[:, k], None if weights is None else weights[k])
        for k, name in enumerate(table.names)
    }


@pytest.mark.parametrize("asked", [None, NAMES])
@pytest.mark.parametrize("seed", range(6))
def test_a_reward_counts_from_the_first_file_that_names_it_in_every_kind_of_file(
    seed, asked, tmp_path
):
    files = list(drawn(seed))
    for step, rows in enumerate(files):
        for kind in ("jsonl", "csv", "parquet"):
            written.rows(tmp_path / kind / f"{step}.{kind}", rows)
    lines, csv, parquet = (
        [*map(by_name, read_rollout_files(tmp_path / kind, rewards=asked))]
        for kind in ("jsonl", "csv", "parquet")
    )
    named = [{*rows[0]} & {*NAMES} for rows in files]
    assert [set(table) for table in lines] == [set().union(*named[: i + 1]) for i in range(4)]
    np.testing.assert_equal(csv, lines)
    np.testing.assert_equal(parquet, lines)
