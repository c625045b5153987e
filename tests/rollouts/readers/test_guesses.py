"""A guess is an option, and the same rows read equal in every format that can hold them."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.analysis.same_rows import LAYOUTS, nested
from tests.cli.unknown_files import write_unknown
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read

from gdpo.rollouts.table import RolloutTable

NAMES = ("correct_reward", "style_reward")


def described(seed):
    return lambda folder: write_unknown(folder, seed)[0]


def unknown(ending, *, turns):
    """A writer of an unknown file with turns, or one row for each group id: prompts form groups."""

    def write(folder):
        rng = np.random.default_rng(7)
        records = []
        for i in range(96):
            row = {"step": i // 32, "uid": i, "question": f"q{i // 8}"}
            row |= {name: round(float(rng.random()), 2) for name in NAMES}
            row |= {"uid": i // 16, "rollout_id": i // 2, "turn": i % 2} if turns else {}
            records.append(row)
        return written.rows(folder / f"a.{ending}", records)

    return write


UNKNOWN = {
    f"{ending}, {said}": unknown(ending, turns=said == "turns")
    for ending in ("jsonl", "csv", "parquet")
    for said in ("turns", "alone")
}


def of_trl(folder):
    """The files of a run of TRL whose total shows the weights of its rewards."""
    rng = np.random.default_rng(3)
    values = [[round(float(v), 2) for v in rng.random(2)] for _ in range(64)]
    records = [
        {
            "step": i // 32,
            "prompt": f"p{i // 4}",
            "completion": f"c{i}",
            "advantage": 0.5,
            **dict(zip(NAMES, both, strict=True)),
            "reward": both[0] + 0.5 * both[1],
        }
        for i, both in enumerate(values)
    ]
    return written.trl(folder, records)


WRITERS = {
    **written.WRITERS,
    **UNKNOWN,
    "trl": of_trl,
    **{f"seed {n}": described(n) for n in range(20)},
}


def pairs(option):
    return dict(each.split("=", 1) for each in option.split(",")) if option else None


@pytest.mark.parametrize("writer", WRITERS)
def test_a_guess_is_an_option(tmp_path, writer):
    """A file is read the same, bit for bit, with what was inferred given as options."""
    path = WRITERS[writer](tmp_path)
    tables, report = read(path)
    assumed = report.assumed(tables[0].run)
    names = tables[0].names if report.scalar_only is False else None
    names = assumed["--rewards"].split(",") if "--rewards" in assumed else names
    again, known = read(path, rewards=names, columns=pairs(assumed.get("--columns")))
    assert known.assumed(tables[0].run).keys() <= {"--weights"}
    assert known.assumed(tables[0].run).get("--weights") == assumed.get("--weights")
    assert len(tables) == len(again)
    for one, other in zip(tables, again, strict=True):
        for name in {field.name for field in fields(RolloutTable)} - {"turns"}:
            np.testing.assert_equal(getattr(other, name), getattr(one, name), err_msg=name)
        assert (one.turns is None) == (other.turns is None)
        for field in fields(one.turns) if one.turns is not None else ():
            values = (getattr(each.turns, field.name) for each in (one, other))
            np.testing.assert_equal(*values, err_msg=field.name)


def nested_without_nulls(folder, records):
    """An object of rewards lacks those that do not apply."""
    there = [{n: v for n, v in row["rewards"].items() if v is not None} for row in records]
    rows = zip(records, there, strict=True)
    nested(folder, [{**row, "rewards": rewards} for row, rewards in rows])


def first_of(groups):
    """The first rollout of each rollout's group, whatever the keys of the groups are."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    return first[group]


value = st.integers(-40, 40).map(lambda n: n / 8)


@st.composite
def runs(draw):
    """Draw the rollouts of 2 or 3 steps, of which some may lack a reward as a whole or in part."""
    records = []
    for step in range(1, draw(st.integers(2, 3)) + 1):
        lacking = draw(st.sampled_from([(), (), *((name,) for name in NAMES)]))
        for group in range(draw(st.integers(1, 2))):
            for sample in range(draw(st.integers(2, 3))):
                rewards = {
                    n: None if n in lacking else draw(st.one_of(value, value, st.none()))
                    for n in NAMES
                }
                if not records:  # lines without nulls show their fields from the first rollout on
                    rewards = {n: 1.0 if v is None else v for n, v in rewards.items()}
                row = {"step": step, "group_id": group, "sample": sample, "rewards": rewards}
                said = {"prompt": f"p{step} {group}", "completion": f"c{sample}"}
                records.append({**row, **said, "advantage": draw(value)})
    return records


# A draw writes eight files, so a failure is shown as it is drawn.
@settings(max_examples=15, phases=[Phase.generate])
@given(records=runs())
@pytest.mark.parametrize("asked", [None, NAMES])
def test_the_same_rows_read_equal_in_every_format(tmp_path_factory, records, asked):
    expected = None
    for write in (*LAYOUTS, nested_without_nulls):
        folder = tmp_path_factory.mktemp("form")
        write(folder, records)
        tables, report = read(folder, rewards=asked)
        assert (report.read, report.skipped) == (len(records), 0)
        found = [
            {
                "step": table.steps,
                "rewards": dict(zip(table.names, table.rewards.T, strict=True)),
                "advantages": table.advantages,
                "groups": first_of(table.groups),
                "trained": table.trained,
                "total": table.total,
            }
            for table in tables
        ]
        np.testing.assert_equal(found, expected := expected or found, err_msg=write.__name__)
