"""Whether a primary reward always won in a run."""

import numpy as np
import pytest
from tests.rollouts.built import rollout
from tests.rollouts.readers.written import lines

from gdpo.advantages import AdvantageRule
from gdpo.rollouts import read_rollouts, write_rollouts


def written(folder, rewards, advantages, step=1):
    """A file with the groups of a step, from rewards[group, sample] by name and advantages."""
    rollouts = [
        rollout(step, g, i, each, prompt=f"question {g}", advantage=float(advantages[g][i]))
        for g, group in enumerate(rewards)
        for i, each in enumerate(group)
    ]
    write_rollouts(folder / f"step-{step}.parquet", rollouts)


def recorded(folder, *, gate=None):
    """Files with 2 steps of 16 groups of 4: right or wrong, and formed or not."""
    random = np.random.default_rng(0)
    for step in (1, 2):
        rewards = random.integers(0, 2, (16, 4, 2)).astype(float)
        if gate:
            rewards[rewards[..., 0] == 0, 1] = {"zero": 0, "missing": np.nan}[gate]
        advantages = AdvantageRule("gdpo", ["right", "format"])(rewards, [1.0, 1.0])
        named = [
            [{"right": r, "format": f if f == f else None} for r, f in group]
            for group in rewards.tolist()
        ]
        written(folder, named, advantages, step)
    return folder


def broken_by_loops(folder):
    groups = {}
    for file in sorted(folder.glob("*.parquet")):
        for each in read_rollouts(file):
            groups.setdefault((each.step, each.group_id), []).append(each)
    pairs = {
        key: [(a, b) for a in rows for b in rows if a.rewards["right"] > b.rewards["right"]]
        for key, rows in groups.items()
    }
    varied = {key: each for key, each in pairs.items() if each}
    lost = [any(a.advantage <= b.advantage + 1e-9 for a, b in each) for each in varied.values()]
    return len(lost), sum(lost)


def test_the_weights_and_the_share_of_broken_groups_are_those_of_loops(tmp_path, machine):
    folder = recorded(tmp_path)
    (found,) = machine(folder, "--primary", "right")["priority"]
    assert (found["groups"], found["broken"]) == broken_by_loops(folder)
    assert found["broken"] > 0
    assert found["estimators"]["grpo"]["smallest"] == 1
    assert found["estimators"]["gdpo"]["smallest"] == pytest.approx(2 / np.sqrt(3))
    assert found["estimators"]["gdpo"]["holds"] is False
    assert found["gates"] == {}


@pytest.mark.parametrize(
    ("gate", "above"), [("zero", ("0", "0")), ("missing", ("0.6667", "0.5774"))]
)
def test_a_gate_that_the_rollouts_show_counts(tmp_path, machine, summary, gate, above):
    folder = recorded(tmp_path, gate=gate)
    (found,) = machine(folder, "--primary", "right")["priority"]
    assert found["gates"]["format"]["otherwise"] == gate
    out = summary(folder, "--primary", "right")
    lines = out.splitlines()
    assert "rollouts with right below 1: a gate" in out
    row = ["right", "1", "0,", "1", "above", above[0], "above", above[1]]
    assert any(line.split() == row for line in lines)
    assert "in 0 of " in out


def test_without_the_option_nothing_is_said_and_an_unknown_name_is_refused(
    tmp_path, summary, refused
):
    folder = recorded(tmp_path)
    assert "priority" not in summary(folder)
    assert "did you mean 'right'" in refused(folder, "--primary", "rigth")


def test_files_without_advantages_and_fields_that_are_not_read_as_rewards_are_told(
    tmp_path, summary, refused
):
    rows = [{"prompt": i // 4, "right": i % 3, "style": i % 2} for i in range(16)]
    file = lines(tmp_path / "x.jsonl", rows)
    asked = (file, "--rewards", "right", "--primary")
    said = "not checked whether right won: the files contain no advantages"
    assert said in summary(*asked, "right")
    said = "primary: 'style' is not read as a reward (rewards: "
    assert said in refused(*asked, "style")


def test_a_primary_reward_without_a_positive_weight_is_not_known(tmp_path, summary, machine):
    asked = (recorded(tmp_path), "--primary", "right", "--weights", "right=0,format=1")
    assert "not known, because right has no positive weight" in summary(*asked)
    (found,) = machine(*asked)["priority"]
    assert found["estimators"]["gdpo"]["holds"] is None


SMALL = {
    "in 0 of 4 groups": [
        {"right": value, "format": 1.0, "style": None} for value in (0.3, 0.1 + 0.2, 1.0, 0.0)
    ],
    "right varies in no group": [{"right": 1.0, "format": k % 2} for k in range(4)],
    "right has no values, or opens several gates": [
        {"right": float(k), **{f"r{t}": float(k >= t) * k / 7 for t in range(1, 5)}}
        for k in range(8)
    ],
}
"""What is said about 4 groups of samples with these rewards, whose advantages have their order."""


@pytest.mark.parametrize("said", SMALL)
def test_rounding_a_missing_or_constant_reward_and_several_gates_are_told(tmp_path, summary, said):
    written(tmp_path, [SMALL[said]] * 4, [[each["right"] for each in SMALL[said]]] * 4)
    out = summary(tmp_path, "--primary", "right")
    assert said in out
    assert "0.3, 0.3" not in out  # 0.1 + 0.2 is no other value
