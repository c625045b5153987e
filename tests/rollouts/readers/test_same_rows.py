"""The rows of a run read equal in every kind of file, also if its files name different rewards."""

import numpy as np
import pytest

from gdpo.rollouts.readers import read_rollout_files
from gdpo.rollouts.readers.report import ReadProblem

NAMES = ["a_reward", "b_reward", "c_reward"]


def drawn(seed):
    """Return the rewards that each file names, and its rows: a step, which may have a total."""
    rng = np.random.default_rng(seed)
    for step in range(4):
        names = rng.permutation(NAMES)[: rng.integers(1, 4)].tolist()
        rows = [
            {
                "step": step,
                "prompt": f"{step} {place // 3}",
                **dict(zip(names, values, strict=True)),
            }
            | ({"total_reward": sum(values)} if seed % 2 else {})
            for place, values in enumerate(rng.normal(size=(6, len(names))).round(3).tolist())
        ]
        yield {*names}, rows


@pytest.mark.parametrize("asked", [None, NAMES])
@pytest.mark.parametrize("seed", range(6))
def test_a_reward_counts_from_the_first_file_that_names_it_in_every_kind_of_file(
    seed, asked, tmp_path, saved
):
    named, files = zip(*drawn(seed), strict=True)
    counted = [set().union(*named[: step + 1]) for step in range(4)]
    found = {}
    for kind in ("jsonl", "csv", "parquet"):
        for step, rows in enumerate(files):
            saved(f"{kind}/{step}.{kind}", rows)
        reading = read_rollout_files(tmp_path / kind, rewards=asked)
        found[kind] = [(table.names, table.rewards, table.weights) for table in reading]
        told = {
            notice.values["name"]
            for notice in reading.report.notices.values()
            if notice.problem is ReadProblem.NO_REWARD
        }
        assert told >= {name for i in range(4) for name in counted[i] - named[i]}
    assert [{*names} for names, *_ in found["jsonl"]] == counted
    np.testing.assert_equal(found["csv"], found["jsonl"])
    np.testing.assert_equal(found["parquet"], found["jsonl"])
