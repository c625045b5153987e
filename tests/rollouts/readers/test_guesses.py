"""A guess is an option, and the same rows read equal in every format that can hold them."""

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.cli.unknown_files import write_unknown
from tests.rollouts.built import rollout
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read

from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.table import RolloutTable

NAMES = ("correct_reward", "style_reward")


def described(seed):
    return lambda folder: write_unknown(folder, seed)[0]


def unknown(ending, *, inside=False, total=False, turns=False, alone=False):
    """A writer of an unknown file. `alone`: each group id has one row, so prompts form groups."""

    def write(folder):
        rng = np.random.default_rng(7)
        records = []
        for i in range(96):
            values = {n: round(float(rng.random()), 2) for n in ("correct", "style")}
            row = {"step": i // 32, "uid": i if alone else i // 4, "question": f"q{i // 8}"}
            row |= {"rewards": values} if inside else {f"{n}_reward": values[n] for n in values}
            row |= {"reward": values["correct"] + 0.5 * values["style"]} if total else {}
            row |= {"uid": i // 16, "rollout_id": i // 2, "turn": i % 2} if turns else {}
            records.append(row)
        return written.rows(folder / f"a.{ending}", records)

    return write


UNKNOWN = {
    f"{ending}, {', '.join(said) or 'plain'}": unknown(ending, **dict.fromkeys(said, True))
    for ending in ("jsonl", "csv", "parquet")
    for said in ([], ["inside"], ["total"], ["turns"], ["alone"], ["inside", "total", "alone"])
    if ending != "csv" or "inside" not in said
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


def as_lines(folder, records):
    kept = [{name: v for name, v in row.items() if v is not None} for row in records]
    return written.rows(folder / "a.jsonl", kept)


def with_nulls(folder, records):
    return written.rows(folder / "a.jsonl", records)


def in_an_object(folder, records):
    """JSON lines with the rewards in an object, which lacks those that do not apply."""
    whole = [{n: v for n, v in row.items() if n not in NAMES} for row in records]
    rewards = [{n: row[n] for n in NAMES if row[n] is not None} for row in records]
    both = zip(whole, rewards, strict=True)
    return written.lines(folder / "a.jsonl", [{**row, "rewards": r} for row, r in both])


def as_csv(folder, records):
    return written.rows(folder / "a.csv", records)


def as_parquet(folder, records):
    return written.rows(folder / "a.parquet", records)


def as_trl(folder, records):
    """TRL's writer makes a column of floats for every reward, also if a step lacks it."""
    path = written.trl(folder, [{n: v for n, v in r.items() if n != "uid"} for r in records])
    for file in (folder / "completions").iterdir():
        table = pq.read_table(file)
        for name in NAMES:
            column = table[name].cast(pa.float64())
            table = table.set_column(table.schema.names.index(name), name, column)
        pq.write_table(table, file)
    return path


def as_record(folder, records):
    for step in dict.fromkeys(row["step"] for row in records):
        rollouts = [
            rollout(
                step,
                row["uid"],
                place,
                {name: row[name] for name in NAMES},
                prompt=row["prompt"],
                advantage=row["advantage"],
            )
            for place, row in enumerate(records)
            if row["step"] == step
        ]
        write_rollouts(rollout_file(folder, step), rollouts)
    return folder


def first_of(groups):
    """The first rollout of each rollout's group, whatever the keys of the groups are."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    return first[group]


FORMS = (as_lines, with_nulls, in_an_object, as_csv, as_parquet, as_trl, as_record)
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
                row = {"step": step, "uid": 10 * step + group, "prompt": f"p{step} {group}"}
                said = {"completion": f"c{sample}", "advantage": draw(value)}
                records.append({**row, **said, **rewards})
    first = records[0]  # lines without nulls show their fields from the first rollout on
    return [first | {name: 1.0 for name in NAMES if first[name] is None}, *records[1:]]


# A draw writes seven files, so a failure is shown as it is drawn.
@settings(max_examples=15, phases=[Phase.generate])
@given(records=runs())
@pytest.mark.parametrize("asked", [None, NAMES])
def test_the_same_rows_read_equal_in_every_format(tmp_path_factory, records, asked):
    expected = None
    for write in FORMS:
        tables, report = read(write(tmp_path_factory.mktemp("form"), records), rewards=asked)
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
