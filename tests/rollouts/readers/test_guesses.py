"""A guess is an option, and the same rows read equal in every format that can hold them."""

import shlex
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.analysis.same_rows import LAYOUTS, nested
from tests.cli.unknown_files import write_unknown
from tests.rollouts.readers import written
from tests.rollouts.readers.reading import read

from gdpo.rollouts.readers import read_rollout_files
from gdpo.rollouts.readers.report import without_rewards
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


def in_objects(row):
    """The row with the fields before a dot as objects."""
    found = {}
    for path, value in row.items():
        above, dot, name = path.rpartition(".")
        (found.setdefault(above, {}) if dot else found)[name] = value
    return found


def several(seed):
    """A writer of three files of a run. Some call a field otherwise than the first, or lack it."""
    kind = ("jsonl", "csv", "parquet")[seed % 3]
    places = ["step", "iteration"], ["uid", "group_id"], ["prompt", "question"], ["score", "note"]
    objects = ["rewards.", "scores.", ""], ["scores.", "metrics.", ""]

    def write(folder):
        rng = np.random.default_rng(seed)
        usual = [(rng.choice(each), each) for each in (*places, *objects)]
        for file in range(3):
            own = [rng.choice([name] * 5 + others) for name, others in usual]
            step, group, prompt, total, *above = own
            rewards = {
                f"{each}{name}": rng.random(24).round(2).tolist()
                for each in above
                for name in rng.choice(["format", "style", "judge"], 2)
            }
            records = [
                {step: 2 * file + i // 12, group: i // 4, prompt: f"{file} {i // 4}"}
                | {path: values[i] for path, values in rewards.items()}
                | {total: sum(values[i] for values in rewards.values()), "completion": f"c{i}"}
                for i in range(24)
            ]
            records = records if kind == "csv" else list(map(in_objects, records))
            written.rows(folder / f"{file}.{kind}", records)
        return folder

    return write


def late(folder):
    """Rewards that first occur after the rows that are looked at. One is called as a number."""
    values = np.random.default_rng(0).random((4200, 4)).round(2).tolist()
    records = []
    for i, (number, *parts) in enumerate(values):
        names = ["format", "judge", "style"] if i > 4100 else ["format"]
        rewards = dict(zip(names, parts, strict=False))
        weights = dict(zip(names, (1, 2, 3), strict=False))
        row = {"step": 0, "prompt": i // 8, "judge": number, "rewards": rewards, "weights": weights}
        records.append({**row, "score": sum(rewards[name] * weights[name] for name in names)})
    return written.lines(folder / "a.jsonl", records)


WRITERS = {
    **written.WRITERS,
    **UNKNOWN,
    "trl": of_trl,
    "late": late,
    **{f"seed {n}": described(n) for n in range(20)},
    **{f"several {n}": several(n) for n in range(24)},
}


def pairs(option):
    return dict(each.split("=", 1) for each in option.split(",")) if option else None


@pytest.mark.parametrize("writer", WRITERS)
def test_a_guess_is_an_option(tmp_path, writer):
    """Files are read the same, bit for bit, with what was inferred given as options."""
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


def test_the_commands_of_a_refusal_read_every_file(saved, tmp_path):
    for file, step in enumerate(("step", "iteration")):
        values = np.random.default_rng(file).random((32, 3)).round(2).tolist()
        rows = [
            {
                step: 0,
                "prompt": i // 4,
                "judge": 1,
                "reward": total,
                "rewards": {"judge": a, "b": b},
            }
            for i, (a, b, total) in enumerate(values)
        ]
        saved(f"{file}.jsonl", rows)
    reading = read_rollout_files(tmp_path)
    assert sum(map(len, reading)) == 64
    commands = [shlex.split(line) for line in without_rewards(reading.report).splitlines()[1:]]
    assert len(commands) > 1
    for *_, names, _, columns in commands:
        tables, found = read(tmp_path, rewards=names.split(","), columns=pairs(columns))
        assert (found.read, found.absent) == (64, [])
        assert all(np.ptp(table.rewards, axis=0).all() for table in tables)


def test_the_command_for_a_file_without_rewards_reads_the_other_files(saved, tmp_path):
    saved("0.jsonl", [{"step": 0, "prompt": i // 4, "a_reward": i % 3} for i in range(8)])
    saved("1.jsonl", [{"iteration": 1, "completion": "c", "rating": i % 3} for i in range(8)])
    reading = read_rollout_files(tmp_path)
    assert sum(map(len, reading)) == 8
    *_, option, name = shlex.split(without_rewards(reading.report).splitlines()[-1])
    assert (option, name) == ("--rewards", "rating")
    reading = read_rollout_files(tmp_path, rewards=[name])
    assert sum(map(len, reading)) == 16


def test_the_options_for_files_of_two_formats_name_the_rewards_of_both(tmp_path):
    of_trl(tmp_path)
    records = [{"step": 9, "prompt": i // 4, "a_reward": i % 3} for i in range(8)]
    written.lines(tmp_path / "9.jsonl", records)
    reading = read_rollout_files(tmp_path)
    (run,) = {table.run for table in reading}
    assert set(reading.report.assumed(run)["--rewards"].split(",")) == {"a_reward", *NAMES}


def test_a_command_for_one_of_several_runs_names_its_folder(tmp_path):
    for run in ("x", "y"):
        file = written.lines(tmp_path / run / "0.jsonl", [{"prompt": "p", "a_reward": 1.0}] * 2)
    (of_x, _), several = read(tmp_path)
    assert several.command({}) == f"gdpo analyze {tmp_path}"
    assert several.command({}, of_x.run) == f"gdpo analyze {tmp_path / 'x'}"
    (table,), one = read(file)
    assert one.command({}, table.run) == f"gdpo analyze {file}"


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
