"""`gdpo analyze` on logged metrics, for runs without rollouts."""

import json
import shutil

import pytest
from tests.environments import ROOT
from tests.rollouts.readers import written

GOLDEN = ROOT / "tests/analysis/logs/golden"
STATE = GOLDEN / "trainer_state.json"


pytestmark = pytest.mark.usefixtures("here")


def test_it_says_what_metrics_tell_and_what_they_cannot(shown, here):
    out = shown(STATE)
    text = " ".join(out.split())
    assert "metrics only, no rollouts: 16 logged steps (1 to 16) from trainer_state.json" in text
    assert "weights: assumed to be 1 for each reward" in text
    assert "reward mean: first → last trend std: first → last weight share weight × std" in text
    assert "vowels 0.029 → 0.0312 none (± 0.0121) 0.034 → 0.0395 33 % 2 %" in text
    assert "is_text 1 → 1 none 0 → 0 33 % 0 %" in text
    assert "groups without signal: first 0 %, last 0 %" in text
    assert "differences between prompts, such as their difficulty" in text
    assert (
        "metrics cannot show the influence share of each reward, whether rewards conflict" in text
    )
    assert "to find out, record rollouts, as with log_completions=True in TRL" in text
    assert not list(here.iterdir())


def test_given_weights_are_used(shown):
    text = " ".join(shown(STATE, "--weights", "vowels=20").split())
    assert "weights: characters 1, is_text 1, vowels 20" in text
    assert "vowels 0.029 → 0.0312 none (± 0.0121) 0.034 → 0.0395 91 %" in text


def test_influence_that_gdpo_logged_is_shown(shown):
    text = " ".join(shown(GOLDEN / "gdpo").split())
    assert "trend weight share zero variance influence share" in text
    assert "gdpo logged warnings in 0 of 16 logged steps" in text
    assert "1 → 1 none 33 % 100 % 0 %" in text
    assert "metrics cannot show whether rewards conflict" in text
    assert "over the whole batch" not in text


def test_json_holds_everything(machine):
    (log,) = machine(STATE, "--rewards", "vowels,is_text")["logs"]
    assert log["steps"] == list(range(1, 17))
    assert [reward["name"] for reward in log["rewards"]] == ["vowels", "is_text"]
    assert log["rewards"][1]["last_std"] == 0
    assert len(log["rewards"][0]["over_time"]["std"]) == 16


@pytest.mark.parametrize(
    "options",
    [
        "--estimators gdpo",
        "--rescore gsm8k",
        "--fail-on note",
        "--columns group_size=4",
        "--range vowels=0:1",
        "--output x.html",
    ],
)
def test_an_option_that_needs_rollouts_is_refused(analyze, options):
    code, out, err = analyze(STATE, *options.split())
    assert code == 2
    assert f"{options.split()[0]} needs rollouts, but {STATE} contains only metrics" in err
    assert "metrics only" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--weights", "vowel=1"), "weights: unknown reward 'vowel': did you mean 'vowels'"),
        (("--rewards", "vowel"), "--rewards: unknown reward 'vowel': did you mean 'vowels'"),
    ],
)
def test_an_unknown_reward_is_refused(refused, options, message):
    assert message in refused(STATE, *options)


def test_rollouts_with_all_their_rewards_are_preferred_to_metrics(machine, folder):
    rows = [{"step": 1, "prompt": i // 2, "reward_a": i % 2, "reward_b": i % 3} for i in range(8)]
    written.lines(folder / "rows.jsonl", rows)
    (folder / STATE.name).write_text(STATE.read_text().replace("vowels", "reward_a"))
    (run,) = machine(folder)["runs"]
    assert [reward["name"] for reward in run["rewards"]] == ["reward_a", "reward_b"]


def test_the_log_of_an_earlier_checkpoint_is_not_shown(shown, tmp_path):
    for step in (8, 16):
        (tmp_path / f"checkpoint-{step}").mkdir()
        shutil.copy(STATE, tmp_path / f"checkpoint-{step}")
    out = shown(tmp_path)
    assert (out.count("metrics only"), "the same numbers" in out) == (1, False)


def test_text_in_a_log_cannot_control_the_terminal(shown, tmp_path, saved):
    name = "a\x1b[31m[red]b"
    row = {f"rewards/{name}/mean": 1.0, f"rewards/{name}/std": 0.0}
    state = {"log_history": [{"step": step, **row} for step in range(20)]}
    saved("trainer_state.json", json.dumps(state))
    for options in ((), ("--output", "json")):
        out = shown(tmp_path, *options)
        assert "\x1b" not in out
        assert "[red]" in out
