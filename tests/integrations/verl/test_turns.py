"""Tests advantages of turns in verl, with stand-ins for verl's trainer and its queue."""

import numpy as np
import pytest
import torch
from tests.integrations.verl import configs
from tests.integrations.verl.configs import KEYS, UIDS, Config, Queue, batch_of, scored
from tests.refusals import config_error, data_error
from torch.testing import assert_close

from gdpo import gdpo
from gdpo.advantages import TURN_ESTIMATORS, turn_gdpo
from gdpo.integrations.verl._carried import Carried, first_turns
from gdpo.integrations.verl._run import VerlRun
from gdpo.integrations.verl._trainers import (
    with_queue,
    with_rewards_dumped,
    with_totals,
)
from gdpo.integrations.verl.settings import check_for_turns
from gdpo.rollouts import read_rollouts

W = [1.0, 0.5]
ALGORITHM = {
    "adv_estimator": "gdpo/turn_gdpo",
    "gdpo_reward_keys": ["steps", "won"],
    "gdpo_reward_weights": W,
}
MASK = torch.tensor(
    [[1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1, 0]]
)
STEPS = [[0.5, 1.0], [0.25], [0.0, 1.0, 2.0], [1.0, 0.0]]
WON = [1.0, 0.0, 1.0, 0.0]
COLUMNS = {"steps": STEPS, "won": WON}
TURNS = np.array([[2, 1], [3, 2]])


def grid(steps=STEPS, won=WON):
    """Return the rewards `[prompt, sample, turn, reward]`, with the outcome at the last turn."""
    found = np.zeros((2, 2, 3, 2))
    for row, (each, outcome) in enumerate(zip(steps, won, strict=True)):
        at = divmod(row, 2)
        found[at][: len(each), 0] = each
        found[at][len(each) - 1, 1] = outcome
    return found


def tokens(advantages, mask=MASK):
    """Return the advantage of each token, for advantages `[prompt, sample, turn]`."""
    found = torch.zeros(mask.shape)
    for row in range(len(mask)):
        turn, before = -1, 0
        for token, now in enumerate(mask[row].tolist()):
            turn += now and not before
            found[row, token] = now and float(advantages[*divmod(row, 2), turn])
            before = now
    return found


ADVANTAGES = turn_gdpo(grid(), W, turns=TURNS)
EXPECTED = tokens(ADVANTAGES)


def called(columns=COLUMNS, *, mask=MASK, config=ALGORITHM, uids=UIDS, carried=None, run=None):
    zeros, run = torch.zeros(mask.shape), run or VerlRun()
    with run.carrying(carried or Carried(columns)):
        return run.compute_advantages(zeros, mask, config, uids)[0]


def test_every_token_gets_the_advantage_of_its_turn_and_no_other_one_does():
    found = called()
    assert_close(found, EXPECTED)
    assert len(set(found[2].tolist())) >= 3  # of the turns, and 0
    assert found.dtype == torch.float32


@pytest.mark.parametrize("name", ["gdpo/turn_broadcast", "gdpo/gdpo.advantages:turn_broadcast"])
def test_other_estimators_for_turns_go_by_name_or_by_module(name):
    wanted = TURN_ESTIMATORS["turn_broadcast"](grid(), W, turns=TURNS)
    found = called(config=ALGORITHM | {"adv_estimator": name})
    assert_close(found, tokens(wanted))


def test_options_of_turns_go_by_reward_name():
    wanted = turn_gdpo(grid(), W, turns=TURNS, outcome=[False, True], max_advantage=0.5)
    options = {"outcome": {"won": True}, "max_advantage": 0.5}
    assert_close(called(config=ALGORITHM | {"gdpo_options": options}), tokens(wanted))


def test_rewards_of_whole_rollouts_stand_at_the_last_turn():
    zeros = [[0.0] * len(each) for each in STEPS]
    wanted = turn_gdpo(grid(zeros), W, turns=TURNS)
    assert_close(called({"steps": [0.0] * 4, "won": WON}), tokens(wanted))


def test_an_estimator_for_rollouts_gets_the_totals():
    totals = np.array([[[1.5, 1], [0.25, 0]], [[3, 1], [1, 0]]])
    wanted = torch.tensor(gdpo(totals, W).reshape(-1, 1)).float() * MASK
    assert_close(called(config=ALGORITHM | {"adv_estimator": "gdpo/gdpo"}), wanted)


def test_a_reward_that_is_missing_at_a_turn_is_left_out_for_the_rollout():
    rewards = grid()
    rewards[1, 0, :, 0] = np.nan
    wanted = tokens(turn_gdpo(rewards, W, turns=TURNS))
    found = called({"steps": [*STEPS[:2], [0.0, None, 2.0], STEPS[3]], "won": WON})
    assert_close(found, wanted)


@pytest.mark.parametrize("estimator", ["gdpo/turn_gdpo", "gdpo/gdpo"])
def test_a_list_of_another_length_is_an_error_that_names_reward_row_and_counts(estimator):
    columns = {"steps": [*STEPS[:2], [0.0, 1.0], STEPS[3]], "won": WON}
    config = ALGORITHM | {"adv_estimator": estimator}
    with data_error(r"'steps' has 2 numbers for row 2 \(b_0_0\).* 3 turns"):
        called(carried=Carried(columns, keys=KEYS), config=config)
    with data_error(r"'steps' has 2 numbers for row 2, which has 3 turns"):
        called(columns, config=config)


def test_what_is_no_number_in_a_list_is_an_error():
    with data_error("'steps' has the value 'x'"):
        called({"steps": [*STEPS[:3], [1.0, "x"]], "won": WON})


def test_a_rollout_without_a_generated_token_has_no_turn_and_no_advantage():
    mask = torch.where(torch.arange(4)[:, None] == 1, 0, MASK)
    found = called({"steps": [STEPS[0], [], *STEPS[2:]], "won": WON}, mask=mask)
    turns = np.array([[2, 0], [3, 2]])
    assert_close(found, tokens(turn_gdpo(grid(), W, turns=turns)) * (mask != 0))
    assert not called({"steps": [0.0] * 4, "won": WON}, mask=torch.zeros_like(MASK)).any()


def test_weights_of_each_prompt_reach_an_estimator_for_turns():
    cells = [{"steps": 2.0}] * 2 + [None] * 2
    found = called({**COLUMNS, "w": cells}, config=ALGORITHM | {"gdpo_weights_column": "w"})
    weights = np.array([[2.0, np.nan], [1.0, 0.5]])
    rewards = grid()
    rewards[0, :, :, 1] = np.nan
    wanted = turn_gdpo(rewards, np.nan_to_num(weights), turns=TURNS)
    assert_close(found, tokens(wanted))


OUTPUTS = ["b_0_1", "a_0_0", "pad_0_0", "a_1_0", "b_0_0", "b_1_0"]
"""Keys of the same rollouts: two outputs of rollout b_0, and a padding row."""


def rows_of_outputs():
    """Return masks, rewards and expected advantages of the rows of OUTPUTS."""
    first, last = MASK[2].clone(), torch.zeros_like(MASK[2])
    first[3:], last[:2] = 0, 1  # two turns, then one
    rows = [last, MASK[0], MASK[0], MASK[1], first, MASK[3]]
    of = [2, 0, None, 1, 2, 3]
    steps = [[9.0] * 5 if i is None else STEPS[i] for i in of]
    won = [0.0 if i is None else WON[i] for i in of]
    wanted = torch.zeros(len(rows), MASK.shape[1])
    starts = [2, 0, 0, 0, 0, 0]
    for row, (mask, i, start) in enumerate(zip(rows, of, starts, strict=True)):
        if i is not None:
            own = np.zeros((1, 1, 9))
            own[0, 0, : 3 - start] = ADVANTAGES[*divmod(i, 2), start:]
            wanted[row] = tokens(own, mask[None])[0]
    return torch.stack(rows), {"steps": steps, "won": won}, wanted


def test_turns_are_counted_over_all_outputs_of_a_rollout_and_padding_is_left_out():
    mask, columns, wanted = rows_of_outputs()
    padding = np.array([key.startswith("pad") for key in OUTPUTS])
    uids = np.array([key[0] for key in OUTPUTS], dtype=object)
    carried = Carried(columns, keys=OUTPUTS, padding=padding)
    assert_close(called(mask=mask, uids=uids, carried=carried), wanted)


def test_the_first_turn_of_an_output_comes_after_those_of_the_outputs_before():
    assert first_turns(["a_0_10", "a_0_9", "b_0_0"], np.array([1, 2, 3])).tolist() == [2, 0, 0]


class Trainer(configs.Trainer):
    def __init__(self, mask=MASK, **algorithm):
        super().__init__(Config(ALGORITHM | algorithm), mask, UIDS, longest=7)


def queue(**fields):
    texts = {"prompts": [[1]] * 4, "responses": [[2]] * 4, "response_mask": list(MASK)}
    return Queue(KEYS, **{"extra_fields": scored(**COLUMNS), **texts, **fields})


def through_queue(trainer, given):
    return with_queue(trainer.run, Trainer._compute_advantage, given)(trainer, batch_of(KEYS), {})


def test_rewards_of_turns_are_fetched_from_the_queue():
    assert_close(through_queue(Trainer(), queue()), EXPECTED)


def test_scores_of_turns_that_the_agent_loop_gives_are_rewards_too():
    loop = [
        {"turn_scores": steps, "tool_rewards": [], "reward_extra_info": {"won": won}}
        for steps, won in zip(STEPS, WON, strict=True)
    ]
    trainer = Trainer(gdpo_reward_keys=["turn_scores", "won"])
    assert_close(through_queue(trainer, queue(extra_fields=loop)), EXPECTED)


def test_tokens_that_verl_rejects_do_not_split_a_turn():
    left = MASK.clone()
    left[3, 1] = left[2] = 0
    found = through_queue(Trainer(mask=left), queue())
    assert_close(found, EXPECTED * left)


def test_the_record_has_the_turns_with_their_rewards_advantages_and_tokens(tmp_path):
    through_queue(Trainer(gdpo_rollouts=str(tmp_path)), queue())
    found = read_rollouts(tmp_path / "step_000001.parquet")
    assert [rollout.rewards["steps"] for rollout in found] == [1.5, 0.25, 3.0, 1.0]
    for rollout, count in zip(found, TURNS.ravel().tolist(), strict=True):
        own = ADVANTAGES[rollout.group_id, rollout.sample_id, :count]
        assert [turn.advantage for turn in rollout.turns] == pytest.approx(own)
        assert rollout.advantage == pytest.approx(own.mean())
        assert sum(turn.num_tokens for turn in rollout.turns) == rollout.num_tokens
    assert [turn.rewards for turn in found[0].turns] == [
        {"steps": 0.5, "won": 0.0},
        {"steps": 1.0, "won": 1.0},
    ]
    assert [turn.num_tokens for turn in found[2].turns] == [1, 1, 2]


def test_the_record_has_no_number_at_any_turn_for_a_reward_that_does_not_apply(tmp_path):
    steps, won = [*STEPS[:2], [1.0, None, 1.0], STEPS[3]], [*WON[:2], None, WON[3]]
    extra = scored(steps=steps, won=won)
    through_queue(Trainer(gdpo_rollouts=str(tmp_path)), queue(extra_fields=extra))
    rollout = read_rollouts(tmp_path / "step_000001.parquet")[2]
    assert [turn.rewards for turn in rollout.turns] == [{"steps": None, "won": None}] * 3
    assert rollout.rewards == {"steps": None, "won": None}


def test_the_record_of_an_estimator_for_rollouts_has_the_turns_too(tmp_path):
    trainer = Trainer(gdpo_rollouts=str(tmp_path), adv_estimator="gdpo/gdpo")
    through_queue(trainer, queue())
    found = read_rollouts(tmp_path / "step_000001.parquet")
    assert [len(rollout.turns) for rollout in found] == [2, 1, 3, 2]
    assert all(turn.advantage == each.advantage for each in found for turn in each.turns)


def test_the_metrics_are_about_the_totals(run):
    called(run=run)
    assert run.metrics()["gdpo/steps/mean"] == pytest.approx(np.mean([1.5, 0.25, 3, 1]))


def test_the_files_of_verl_have_the_totals():
    trainer = Trainer()
    with_rewards_dumped(trainer.run, Trainer._log_rollout_data, queue())(
        trainer, batch_of(KEYS), {}, "folder"
    )
    assert trainer.dumped == {"uid": KEYS, "steps": [1.5, 0.25, 3.0, 1.0], "won": WON}


def test_validation_has_the_totals_and_only_of_rewards_that_are_named():
    infos = {"reward": [1.0, 2.0], "steps": [[1.0], [1.0, 2.0]], "other": [[1.0], []]}
    updated = with_totals(Trainer._val_metrics_update)
    assert updated(Trainer(), [], [], infos, []) == {**infos, "steps": [1.0, 3.0]}
    assert updated(Trainer(adv_estimator="grpo"), [], [], infos, []) is infos


def configured(*, use_v1=True, actor=None, **more):
    section = {} if actor is None else {"actor_rollout_ref": Config(actor=Config(actor))}
    algorithm = Config(ALGORITHM | more)
    return Config(algorithm=algorithm, trainer=Config(use_v1=use_v1), **section)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (configured(use_v1=False), r"turn_gdpo.*trainer.use_v1=False.*gdpo/gdpo"),
        (Config(configured(), rollout={}), r"turn_gdpo.*this program.*main_ppo"),
        (configured(actor={"policy_loss": {"loss_mode": "geo_mean"}}), "loss_mode=geo_mean"),
    ],
)
def test_a_trainer_or_a_loss_without_turns_is_refused_before_the_run(check, config, match):
    with config_error(match):
        check(config)
    config = Config(config, algorithm=Config(config.algorithm, adv_estimator="gdpo/gdpo"))
    assert check(config) == "verl's answer"


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum-norm", None])
def test_a_loss_that_counts_every_token_alike_needs_no_warning(mode):
    assert check_for_turns(configured(actor={"loss_agg_mode": mode})) == []
    assert check_for_turns(configured()) == []


def test_a_loss_that_divides_by_the_tokens_of_each_rollout_is_warned_about_once(check, caplog):
    config = configured(actor={"loss_agg_mode": "seq-mean-token-mean"})
    assert check(config) == check(config) == "verl's answer"
    config.algorithm["adv_estimator"] = "gdpo/gdpo"
    check(config)
    (message,) = caplog.messages
    assert "loss_agg_mode=seq-mean-token-mean" in message
