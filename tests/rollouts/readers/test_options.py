"""A proposal is nothing but options: the file is read the same if the user gives them."""

from dataclasses import fields

import numpy as np
import pytest
from tests.cli.unknown_files import write_unknown

from gdpo.rollouts.readers import read_rollout_files
from gdpo.rollouts.table import RolloutTable


def read(path, **options):
    reading = read_rollout_files(path, **options)
    return list(reading), reading.report


def pairs(option):
    return dict(each.split("=", 1) for each in option.split(",")) if option else None


@pytest.mark.parametrize("seed", range(20))
def test_a_file_is_read_the_same_with_the_options_that_were_assumed(tmp_path, seed):
    path, _ = write_unknown(tmp_path / "file", seed)
    tables, report = read(path)
    assumed = report.assumed("")
    assert assumed or not any(len(table.names) for table in tables)
    names = assumed["--rewards"].split(",") if "--rewards" in assumed else None
    again, given = read(path, rewards=names, columns=pairs(assumed.get("--columns")))
    assert given.assumed("").keys() <= {"--weights"}
    assert given.assumed("").get("--weights") == assumed.get("--weights")
    assert len(tables) == len(again)
    for one, other in zip(tables, again, strict=True):
        for name in {field.name for field in fields(RolloutTable)} - {"ranges"}:
            np.testing.assert_equal(getattr(other, name), getattr(one, name), err_msg=name)
