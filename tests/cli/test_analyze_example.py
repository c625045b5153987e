"""`gdpo analyze --example`: rollouts that come with the package, one reward of which is ignored."""

import json


def test_the_example_has_a_reward_that_is_ignored_in_every_step(gdpo_says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = gdpo_says("analyze", "--example", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["rows"] == {"all": 3840, "read": 3840, "skipped": 0, "not_analyzed": 0}
    (run,) = found["runs"]
    (ignored,) = [each for each in run["findings"] if each["kind"] == "ignored"]
    assert (ignored["rewards"], ignored["steps"]) == (["brevity"], 30)


def test_the_example_is_read_alone_and_an_analysis_without_paths_names_it(gdpo_says, tmp_path):
    code, _, err = gdpo_says("analyze", tmp_path, "--example")
    assert code == 2
    assert "--example" in err
    assert tmp_path.name in err
    code, _, err = gdpo_says("analyze")
    assert code == 2
    assert "--example" in err
