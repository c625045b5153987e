"""Tests `weights_column`: each prompt of a TRL training has its own weights."""

import numpy as np
import pytest
from datasets import Dataset
from numpy.testing import assert_allclose, assert_array_equal
from tests.integrations.two_ranks import launched
from tests.integrations.variants import (
    PROMPTS,
    SAMPLES,
    bytes_written,
    digits,
    rollouts_of,
    trainer_of,
    vowels,
)

from gdpo import ConfigError, DataError, gdpo
from gdpo.analysis import analyze
from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.rewards.weights_column import weights_of_cells
from gdpo.rollouts import reward_arrays
from gdpo.rollouts.readers import read_rollout_files

NAMES = ["bytes_written", "digits", "vowels"]
CONFIGURED = [1.0, 0.5, 0.25]
CELLS = [
    {"bytes_written": 2.0, "vowels": 4.0},
    {"bytes_written": None, "digits": 1.0, "vowels": 1.0},
    None,
    {"bytes_written": 1.0, "digits": -3.0, "vowels": 0.0},
    {"vowels": 2.0},
    None,
]
nan = float("nan")
WEIGHTS = dict(
    zip(
        PROMPTS,
        [[2, nan, 1], [nan, 0.5, 0.25], CONFIGURED, [1, -1.5, 0], [nan, nan, 0.5], CONFIGURED],
        strict=True,
    )
)


def rows(cells=CELLS):
    return Dataset.from_list(
        [{"prompt": p, "w": c} for p, c in zip(PROMPTS * 4, cells * 4, strict=True)]
    )


def make(policy, folder, *, data=None, **changed):
    wanted = {"weights_column": "w", "reward_weights": CONFIGURED, "max_steps": 2, **changed}
    how = {"train_dataset": rows() if data is None else data}
    rewards = [bytes_written, digits, vowels]
    return trainer_of(GDPOTrainer, GDPOConfig, policy, folder, rewards=rewards, how=how, **wanted)


def recorded(folder, step):
    return [r for r in rollouts_of(folder, step) if r.trained]


def check(folder, steps=2):
    """Check that the recorded rewards, weights and advantages are those of the column."""
    for step in range(1, steps + 1):
        rollouts = recorded(folder, step)
        arrays = reward_arrays(rollouts)
        prompts = [r.prompt for r in rollouts if r.sample_id == 0]
        wanted = np.array([WEIGHTS[prompt] for prompt in prompts])
        assert_allclose(arrays.weights, np.nan_to_num(wanted))
        for p in range(len(prompts)):
            for s, name in enumerate(NAMES):
                assert np.all(np.isnan(arrays.rewards[p, :, s])) == np.isnan(wanted[p, s]), name
        expected = gdpo(arrays.rewards, wanted)
        assert_allclose(arrays.advantages, expected, atol=1e-5)
        assert np.any(expected)


@pytest.mark.slow
def test_each_prompt_is_trained_with_its_own_weights_and_analyze_reads_them(place, tmp_path):
    make(*place, rollouts_dir=str(tmp_path / "rollouts")).train()
    check(tmp_path)
    analysis = analyze(read_rollout_files(tmp_path / "rollouts"), replayed=["recorded", "gdpo"])
    (run,) = analysis.runs
    assert run.weights_from == "recorded, different between prompts"
    assert [each.changed for each in analysis.replayed] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("filter_groups", ["any_reward_varies", "advantage_nonzero"])
def test_groups_that_replace_others_bring_their_weights(place, tmp_path, filter_groups):
    changed = {"filter_groups": filter_groups, "rollouts_dir": str(tmp_path / "rollouts")}
    make(*place, **changed).train()
    for step in (1, 2):
        for rollout in rollouts_of(tmp_path, step):
            wanted = np.nan_to_num(WEIGHTS[rollout.prompt])
            assert_allclose(list(rollout.weights.values()), wanted)


def weights_of_a_rank(policy, folder):
    trainer = make(
        policy,
        folder,
        rollouts_dir=str(folder / "rollouts"),
        per_device_train_batch_size=6,
        max_steps=1,
    )
    trainer.train()
    return len(trainer.train_dataset)


@pytest.mark.slow
def test_a_group_on_two_processes_has_its_own_weights(place, tmp_path):
    """12 rollouts of 3 prompts on 2 processes: the second group is on both."""
    assert SAMPLES == 4
    name = "tests.integrations.test_trl_prompt_weights:weights_of_a_rank"
    assert launched(name, *place) == [24, 24]
    check(tmp_path, steps=1)


def only_lists(rewards, weights):
    return rewards @ weights.reshape(3)


@pytest.mark.parametrize(
    ("cell", "changed", "error", "told"),
    [
        ({"bytes": 1.0}, {}, DataError, "'bytes' is not a reward of this run: Allowed: bytes_writ"),
        ({"digits": float("inf")}, {}, DataError, "row 1.*weight of 'digits' is inf"),
        ({"digits": "much"}, {}, DataError, "row 1.*weight of 'digits' is 'much'"),
        ({"digits": True}, {}, DataError, "row 1.*weight of 'digits' is True"),
        (1.0, {}, DataError, "row 1.*1.0 is not a mapping"),
        (
            {"digits": 1.0},
            {"weights_column": "ww"},
            ConfigError,
            "did you mean 'w'",
        ),
        (
            {"digits": 1.0},
            {"advantage": f"{__name__}:only_lists"},
            ConfigError,
            "does not take weights for",
        ),
    ],
)
def test_what_is_wrong_is_told_before_the_model_is_loaded(place, cell, changed, error, told):
    data = Dataset.from_dict({"prompt": ["a", "b"], "w": [None, cell]})
    with pytest.raises(error, match=told):
        make(*place, data=data, model="no/such-model", **changed)


def test_missing_and_null_both_mean_that_the_reward_does_not_apply():
    cells = [{"a": 2.0}, {"a": 2.0, "b": None}, None, {"a": 1, "other": None}]
    weights = weights_of_cells(cells, ["a", "b"], [3.0, 0.5], column="w")
    assert_array_equal(weights, [[6, nan], [6, nan], [3, 0.5], [3, nan]])
