"""`gdpo analyze --example`: rollouts that come with the package, one reward of which is ignored."""

import pyarrow.parquet as pq

from gdpo.analysis import EXAMPLE


def test_the_example_has_a_reward_that_is_ignored_in_every_step(machine, summary):
    found = machine("--example")
    assert found["rows"] == {"all": 3840, "read": 3840, "skipped": 0, "not_analyzed": 0}
    (run,) = found["runs"]
    ignored, dominant = run["findings"]
    assert (dominant["kind"], dominant["rewards"]) == ("dominant", ["correctness"])
    assert (ignored["kind"], ignored["rewards"], ignored["steps"]) == ("ignored", ["brevity"], 30)
    assert 0.3 < run["rewards"][1]["mean"] < 0.8  # it is not learned
    out = summary("--example")
    assert "rewards: " not in out  # they are named in the file, so nothing was guessed
    assert "advantages: recorded, equal to those of grpo" in " ".join(out.split())


def test_gdpo_on_the_groups_of_the_example_gives_no_finding(machine, tmp_path):
    pq.write_table(pq.read_table(EXAMPLE).drop_columns(["advantage"]), tmp_path / "a.parquet")
    found = machine(tmp_path, "--estimators", "gdpo")
    assert found["runs"][0]["findings"] == []


def test_the_example_is_read_alone_and_an_analysis_without_paths_names_it(refused, tmp_path):
    err = refused(tmp_path, "--example")
    assert "--example" in err
    assert tmp_path.name in err
    assert "--example" in refused()
