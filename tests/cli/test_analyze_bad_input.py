"""`gdpo analyze` on what goes wrong in practice: named with file and line, the rest analyzed."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.report.hostile import TEXTS
from tests.rollouts.built import rollout
from tests.rollouts.readers import written

from gdpo.rollouts import rollout_file, write_rollouts


@pytest.fixture
def analyzed(shown, machine, here):
    """Runs the command twice, for people and for machines; what both say has to fit."""

    def run(*arguments):
        out = shown(*arguments, "--estimators", "grpo,gdpo")
        found = machine(*arguments)
        rows = found["rows"]
        assert rows["all"] == rows["read"] + rows["skipped"]
        assert rows["read"] == rows["not_analyzed"] + sum(
            run["rollouts"] + run["left_out"] for run in found["runs"]
        )
        assert f"{rows['all']:,} rows: {rows['read']:,} read, {rows['skipped']:,} skipped" in out
        lines = re.split("influence share of every reward|advantages with", out)[0].splitlines()
        assert len(lines) <= (31 if "turns:" in out else 26)
        assert all(c.isprintable() or c == "\n" for c in out)
        return found, out

    return run


def test_several_formats_in_one_folder(analyzed, folder):
    written.verl(folder)
    written.nemo_rl(folder)
    written.tinker(folder)
    found, out = analyzed(folder)
    formats = out.splitlines()[1]
    assert all(f"{name} (1 file)" in formats for name in ("nemo-rl", "tinker", "verl"))
    assert found["rows"]["read"] == 20
    assert {r["name"] for r in found["runs"][0]["rewards"]} == {
        *("acc", "format", "rewards", "brief", "correct")
    }


def test_every_reward_missing_is_no_crash(analyzed, folder):
    written.lines(folder / "a.jsonl", [{"prompt": "a", "q": None}] * 4)
    found, out = analyzed(folder, "--rewards", "q")
    assert found["runs"][0]["rewards"][0]["mean"] is None
    assert "! `q` is missing from every rollout" in out


def test_one_huge_group_is_told_and_the_other_steps_are_analyzed(analyzed, folder):
    odd = [f"p{i}" for i in range(4000)] + ["q"] * 4000
    written.lines(folder / "1.jsonl", [{"prompt": p, "reward": 1.0} for p in odd])
    rows = [{"prompt": "a", "reward": float(i)} for i in range(4)]
    written.lines(folder / "2.jsonl", rows)
    found, out = analyzed(folder)
    assert found["rows"]["not_analyzed"] == 8000
    assert found["problems"][0]["rollouts"] == 8000
    assert "but one has 4,000" in out
    assert found["runs"][0]["over_time"]["step"] == [2]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_text_commands_neither_terminal_nor_page(analyzed, folder, text):
    """In texts, and in the names of rewards, folders and files."""
    name = "".join(c for c in text[:60] if c not in "/\x00" and not "\ud800" <= c <= "\udfff")
    rows = [
        {"prompt": text[:5000], "completion": text, "step": 1, name: i / 2, f"{name} 2": 1.0}
        for i in range(4)
    ]
    path = folder / f"{name[:40]} 1.jsonl"
    written.lines(path, rows)
    with path.open("a") as file:
        file.write("{\x1b]0;title\x07")
    columns = ("--columns", "prompt=prompt,completion=completion,step=step")
    found, _ = analyzed(folder, *columns)
    assert {r["name"] for r in found["runs"][0]["rewards"]} == {name, f"{name} 2"}
    page = Path("analysis.html").read_text()
    assert len(page) < 2_000_000
    assert page.count("<script") == 2
    assert all(c.isprintable() or c in "\n\t\u200c\u200d" for c in page)


def test_a_hostile_name_commands_nothing_in_findings_about_its_influence(shown, here, tmp_path):
    """It falls, dominates and is in the readings, or it never varies."""
    text = "".join(TEXTS[key] for key in ("controls", "lines", "reversed", "handler"))
    rng = np.random.default_rng(0)
    for flat in (False, True):
        for step in range(20):
            rollouts = [
                rollout(
                    step,
                    group,
                    sample,
                    dict(zip((text, f"{text} 2", f"{text} 3"), values, strict=True)),
                    completion=text,
                    advantage=values[0],
                )
                for group in range(8)
                for sample in range(8)
                for values in [
                    (100 * rng.random(), rng.random() < 0.9 - step / 25, flat or rng.random())
                ]
            ]
            write_rollouts(rollout_file(tmp_path / str(flat), step), rollouts)
        out = shown(tmp_path / str(flat), "--estimators", "grpo,gdpo")
        assert all(c.isprintable() or c == "\n" for c in out)
        verdict = out.splitlines()[-1]
        assert verdict.startswith("verdict: check the function" if flat else "verdict: `")
        said = " ".join(out.split())
        assert " falls: its mean went from " in said
        assert flat or "Less than half of its" in said
        page = Path("analysis.html").read_text()
        assert page.count("<script") == 2
        assert "<img" not in page
        assert all(c.isprintable() or c in "\n\t\u200c\u200d" for c in page)


def test_what_is_no_rollout_at_all(analyze, here):
    (here / "notes.txt").write_text("hello")
    (here / "broken.parquet").write_bytes(b"PAR1" * 9)
    written.lines(here / "log.jsonl", [{"loss": 0.5, "phase": "warm"}])
    code, out, err = analyze(".")
    assert code == 2
    assert "broken.parquet: not read" in out
    assert "log.jsonl: not read: unknown format" in out
    assert "no rollout could be read from these files" in err
    code, out, _ = analyze("notes.txt")
    assert code == 2
    assert "notes.txt: not read: it contains no metrics, and rollouts end in .parquet" in out


def test_a_format_that_a_file_cannot_have_asks_for_no_rewards(analyze, here):
    written.lines(here / "a.jsonl", [{"prompt": "p", "rewards": {"a": 1.0}}])
    pq.write_table(pa.table({"step": [1], "prompt": ["p"], "a": [1.0]}), "b.parquet")
    for of, why, *rest in (
        ("trl", "format trl is not stored in jsonl files", "a.jsonl", "--rewards", "a"),
        ("gdpo", "needs a column 'rewards': name the columns (--rewards)", "b.parquet"),
    ):
        code, out, err = analyze(*rest, "--columns", f"format={of}")
        assert code == 2
        assert why in " ".join(out.split())
        assert err == "gdpo: no rollout could be read from these files: see the notices above\n"
