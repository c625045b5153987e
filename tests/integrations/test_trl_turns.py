"""Tests rewards and advantages per turn in `GDPOTrainer`."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tests.integrations.prepared import flat
from tests.integrations.turns import Kept, at_random, by_policy, dots, trainer_of
from tests.integrations.two_ranks import launched
from tests.integrations.variants import rollouts_of
from tests.refusals import config_error, reward_error
from trl import GRPOTrainer

from gdpo.advantages import TURN_ESTIMATORS, gdpo
from gdpo.integrations.trl._turns import total_of
from gdpo.rewards import Reward
from gdpo.rollouts import read_rollouts

turn_gdpo = TURN_ESTIMATORS["turn_gdpo"]


@pytest.mark.parametrize(
    ("value", "total"),
    [([1, 2.5], 3.5), ((1, None), None), (np.array([1, 2]), 3.0), (4, 4)],
)
def test_the_total_of_turns_is_their_sum_or_missing(value, total):
    assert total_of("echo", value, 0, 2) == total


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([1, 2, 3], "has 3 numbers .* completion 7.* 2 turns"),
        ([1.0, "0.5"], "returned '0.5'.* turn 1 of completion 7"),
        ([1.0, float("inf")], "returned inf.* turn 1 of completion 7"),
    ],
)
def test_a_value_that_is_no_finite_number_for_each_turn_is_an_error(value, named):
    with reward_error(f"'echo' {named}"):
        total_of("echo", value, 7, 2)


def test_a_loss_with_one_advantage_per_rollout_is_refused(tmp_path, monkeypatch):
    """TRL 1.12 has such a loss."""
    monkeypatch.setattr(GRPOTrainer, "compute_liger_loss", print, raising=False)
    with config_error("use_liger_kernel=False"):
        trainer_of(tmp_path, use_liger_kernel=True)


@pytest.mark.parametrize(
    ("loss_type", "warns"),
    [("grpo", True), ("sapo", True), ("bnpo", True), ("dapo", False), ("dr_grpo", False)],
)
def test_a_loss_that_divides_by_tokens_of_rollouts_is_named_in_the_log(
    loss_type, warns, tmp_path, caplog
):
    trainer_of(tmp_path, loss_type=loss_type)
    assert [f"loss_type='{loss_type}'" in line for line in caplog.messages] == [True] * warns


def trained(folder, **changed):
    """Train on a game that is played at random."""
    trainer = trainer_of(folder, **{"how": at_random, **changed})
    trainer.train()
    return trainer


def arrays_of(rollouts):
    """Return the recorded rewards of each turn, and the numbers of turns."""
    counts = np.array([len(rollout.turns) for rollout in rollouts])
    names = list(rollouts[0].rewards)
    rewards = np.zeros((len(rollouts), counts.max(), len(names)))
    for i, rollout in enumerate(rollouts):
        for t, turn in enumerate(rollout.turns):
            rewards[i, t] = [np.nan if turn.rewards[n] is None else turn.rewards[n] for n in names]
    samples = 1 + max(rollout.sample_id for rollout in rollouts)
    return rewards.reshape(-1, samples, *rewards.shape[1:]), counts.reshape(-1, samples)


def turn_of_record(rollouts, weights=(1.0, 1.0)):
    """Return turn_gdpo of the recorded rewards, `[rollout, turn]`."""
    rewards, counts = arrays_of(rollouts)
    return turn_gdpo(rewards, list(weights), turns=counts).reshape(len(rollouts), -1)


def assert_trained_on(trainer, advantages):
    """Compare the advantages per token in the loss with a loop over the turns of the game."""
    plays = trainer.rollout_func.played
    expected = np.zeros((len(plays), max(len(play.ids) for play in plays)))
    for row, play in enumerate(plays):
        for turn, places in enumerate(play.runs()):
            expected[row, places] = advantages[row, turn]
    assert_allclose(trainer.kept["advantages"], expected, atol=1e-6)
    return expected


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return a trainer after one step with turn_gdpo, and its folder."""
    folder = tmp_path_factory.mktemp("played")
    trainer = trained(folder, gradient_accumulation_steps=2)
    return trainer, folder


def test_the_loss_gets_turn_gdpo_of_the_recorded_rewards_token_by_token(played):
    trainer, folder = played
    rollouts = rollouts_of(folder)
    assert {len(rollout.turns) for rollout in rollouts} == {1, 2, 3, 4}
    expected = assert_trained_on(trainer, turn_of_record(rollouts))
    assert len(np.unique(expected.round(6))) > 20


def test_the_record_has_the_turns_their_tokens_and_their_advantages(played):
    trainer, folder = played
    rollouts = rollouts_of(folder)
    advantages = turn_of_record(rollouts)
    for rollout, play, own in zip(rollouts, trainer.rollout_func.played, advantages, strict=True):
        turns = rollout.turns
        assert [turn.rewards["echo"] for turn in turns] == play.earned
        assert rollout.rewards["echo"] == sum(play.earned)
        outcome = [0.0] * (len(turns) - 1) + [float(play.ids[-1] == 3)]
        assert [turn.rewards["dots"] for turn in turns] == outcome
        assert [turn.num_tokens for turn in turns] == [len(run) for run in play.runs()]
        assert [turn.advantage for turn in turns] == pytest.approx(own[: len(turns)], abs=1e-6)
        assert rollout.advantage == pytest.approx(own[: len(turns)].mean(), abs=1e-6)


def test_metrics_have_totals_and_numbers_of_turns(played):
    trainer, folder = played
    log, rollouts = trainer.state.log_history[0], rollouts_of(folder)
    total = sum(sum(r.rewards.values()) for r in rollouts) / len(rollouts)
    assert log["reward"] == pytest.approx(total)
    assert log["turns/mean"] == pytest.approx(np.mean([len(r.turns) for r in rollouts]))
    assert log["turns/max"] == 4


def test_an_estimator_for_rollouts_trains_on_the_totals_and_its_record_has_turns_too(tmp_path):
    trainer = trained(tmp_path, advantage="gdpo")
    rollouts = rollouts_of(tmp_path)
    totals = np.array([list(rollout.rewards.values()) for rollout in rollouts]).reshape(4, -1, 2)
    wanted = gdpo(totals, [1.0, 1.0]).reshape(-1)
    assert_allclose(trainer.kept["advantages"], wanted, atol=1e-6)
    for rollout in rollouts:
        assert {turn.advantage for turn in rollout.turns} == {rollout.advantage}
        assert sum(turn.rewards["echo"] for turn in rollout.turns) == rollout.rewards["echo"]


def test_without_rewards_per_turn_an_estimator_for_rollouts_records_no_turns(tmp_path):
    trainer_of(tmp_path, how=at_random, advantage="gdpo", rewards=[dots]).train()
    assert all(rollout.turns is None for rollout in rollouts_of(tmp_path))


def test_without_a_mask_a_completion_is_one_turn(tmp_path, caplog):
    trainer = trainer_of(tmp_path, rewards=[length])
    trainer.rollout_func = None
    trainer.train()
    assert "the check" not in caplog.text  # with a made-up batch
    rollouts = rollouts_of(tmp_path)
    assert {len(rollout.turns) for rollout in rollouts} == {1}
    expected = turn_of_record(rollouts, [1.0])
    shown = trainer.kept["advantages"].numpy()
    mask = trainer.kept["completion_mask"].numpy()
    assert_allclose(shown, expected * mask, atol=1e-6)


def length(completion_ids, **columns):
    return [float(len(ids)) for ids in completion_ids]


def one_too_many(completions, earned, **columns):
    return [[*each, 0.0] for each in earned]


@pytest.mark.parametrize("advantage", ["turn_gdpo", "gdpo"])
def test_a_wrong_number_of_rewards_is_an_error_with_every_estimator(advantage, tmp_path):
    trainer = trainer_of(tmp_path, how=at_random, rewards=[one_too_many], advantage=advantage)
    with reward_error(r"'one_too_many' has (\d) numbers.*completion 0"):
        trainer.train()


async def missing_for_some(completions, earned, **columns):
    """Return None at the last turn of every third completion."""
    return [[*e[:-1], None if i % 3 == 0 else e[-1]] for i, e in enumerate(earned)]


def test_none_at_a_turn_makes_the_reward_missing_for_the_rollout(tmp_path):
    trainer = trained(tmp_path, rewards=[missing_for_some, dots])
    rollouts = rollouts_of(tmp_path)
    for i, rollout in enumerate(rollouts):
        is_missing = {turn.rewards["missing_for_some"] is None for turn in rollout.turns}
        assert is_missing == {i % 3 == 0} == {rollout.rewards["missing_for_some"] is None}
    assert_trained_on(trainer, turn_of_record(rollouts))


@pytest.mark.parametrize("otherwise", ["zero", "missing"])
def test_a_gate_tests_the_total_and_closes_all_turns(otherwise, tmp_path):
    gate = {"on": "total_of_echo", "at_least": 1, "otherwise": otherwise}
    trainer = trained(tmp_path, rewards=[twice, total_of_echo], gates={"twice": gate})
    rollouts = rollouts_of(tmp_path)
    closed = None if otherwise == "missing" else 0.0
    for rollout, play in zip(rollouts, trainer.rollout_func.played, strict=True):
        is_open = sum(play.earned) >= 1
        wanted = [2 * each if is_open else closed for each in play.earned]
        assert [turn.rewards["twice"] for turn in rollout.turns] == wanted
    assert len({sum(play.earned) >= 1 for play in trainer.rollout_func.played}) == 2
    assert_trained_on(trainer, turn_of_record(rollouts))


def twice(completions, earned, **columns):
    return [[2 * each for each in turns] for turns in earned]


def total_of_echo(completions, earned, **columns):
    """Return what the turns earned, spread over the turns in another order."""
    return [turns[::-1] for turns in earned]


def test_weights_of_prompts_weigh_turns_and_remove_rewards(tmp_path):
    cells = [{"echo": 1.0, "dots": 2.0}, {"echo": 1.0, "dots": None}] * 8
    trainer = trained(tmp_path, weights_column="w", columns={"w": cells}, max_steps=1)
    rollouts = rollouts_of(tmp_path)
    rewards, counts = arrays_of(rollouts)
    weights = np.array([list(r.weights.values()) for r in rollouts[:: rewards.shape[1]]])
    assert (weights == 0).any()
    assert ((weights == 0) == np.isnan(rewards[:, 0, 0])).all()
    advantages = turn_gdpo(rewards, weights, turns=counts)
    assert_trained_on(trainer, advantages.reshape(-1, counts.max()))


def test_an_evaluation_uses_turns_too(tmp_path):
    trainer = trainer_of(tmp_path, how=at_random, per_device_eval_batch_size=16)
    logged = trainer.evaluate()
    assert logged["eval_turns/max"] == 4
    assert all(r.turns for r in read_rollouts(tmp_path / "rollouts/eval/step_000000.parquet"))


class Doubled(Kept):
    """Overrides the public hook."""

    def compute_advantages(self, rewards, token_counts=None, weights=None, turns=None):
        assert rewards.shape[:2] == turns.shape
        return 2 * super().compute_advantages(rewards, token_counts, weights, turns)


def test_a_subclass_can_override_the_advantages(tmp_path):
    trainer = trained(tmp_path, cls=Doubled)
    assert_trained_on(trainer, 2 * turn_of_record(rollouts_of(tmp_path)))


def without_dots(trainer, generator):
    """Return a function that never ends a rollout early."""
    return lambda texts: torch.randint(1, 3, [len(texts)], generator=generator).tolist()


def first_or_last(completions, earned, **columns):
    """Return 1 in total, for the first turn or for the last turn."""
    return [
        [float(t == (0 if i % 2 else len(turns) - 1)) for t in range(len(turns))]
        for i, turns in enumerate(earned)
    ]


@pytest.mark.parametrize(("advantage", "replaced"), [("turn_gdpo", False), ("gdpo", True)])
def test_a_group_whose_turns_vary_has_signal_for_an_estimator_for_turns(
    advantage, replaced, tmp_path
):
    trainer = trained(
        tmp_path,
        how=without_dots,
        rewards=[first_or_last],
        advantage=advantage,
        filter_groups="any_reward_varies",
        max_filter_rounds=1,
    )
    assert (trainer.state.log_history[0]["filter/rounds"] == 1) == replaced


def rarely(completions, earned, **columns):
    """Return rewards that are constant in most groups."""
    return [
        [float(sum(turns) == len(turns) == 2 and t == 0) for t in range(len(turns))]
        for turns in earned
    ]


def test_replaced_groups_train_on_the_advantages_of_the_assembled_batch(tmp_path):
    trainer = trained(tmp_path, rewards=[rarely], filter_groups="advantage_nonzero", seed=3)
    rollouts = rollouts_of(tmp_path)
    chosen = [rollout for rollout in rollouts if rollout.trained]
    assert len(chosen) == 16 < len(rollouts)
    assert all(turn.advantage == 0 for r in rollouts if not r.trained for turn in r.turns)
    kept, mask = trainer.kept["advantages"], trainer.kept["tool_mask"]
    mask = mask * trainer.kept["completion_mask"]
    in_loss = sorted(round(float(each), 5) for each in kept[mask == 1])
    recorded = sorted(
        round(turn.advantage, 5) for r in chosen for turn in r.turns for _ in range(turn.num_tokens)
    )
    assert in_loss == pytest.approx(recorded, abs=2e-5)
    assert max(recorded) > 0


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_packing_trains_as_without_it(loss_type, tmp_path):
    runs = {}
    for packed in (True, False):
        trainer = trainer_of(
            tmp_path / str(packed),
            how=at_random,
            pack_micro_batches=packed,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            loss_type=loss_type,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            max_steps=2,
        )
        before = flat(trainer.model)
        trainer.train()
        runs[packed] = flat(trainer.model) - before
    assert (runs[True] - runs[False]).norm() < 1e-5 * runs[False].norm()


def long_run(folder, **changed):
    return trainer_of(
        folder,
        how=by_policy,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=2,
        max_steps=4,
        advantage_options={"schedules": {"dots": {"from": 1.0, "to": 0.0, "steps": 4}}},
        **changed,
    )


@pytest.mark.slow
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    whole = long_run(tmp_path / "run")
    whole.train()
    steps = {step: rollouts_of(tmp_path / "run", step) for step in (3, 4)}
    resumed = long_run(tmp_path / "run")
    resumed.rollout_func.calls = 2
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert torch.equal(flat(whole.model), flat(resumed.model))
    assert steps == {step: rollouts_of(tmp_path / "run", step) for step in (3, 4)}


def length_of_history(messages, reference):
    """Return the share of letters in the model's turn that are in the reference."""
    assert messages[-1]["role"] == "assistant"
    length_of_history.seen.append([message["content"] for message in messages])
    return messages[-1]["content"].count(reference["letter"]) / 2


length_of_history.seen = []


def test_a_reward_of_turns_sees_the_completion_up_to_each_turn(tmp_path):
    length_of_history.seen.clear()
    trainer = trained(
        tmp_path,
        rewards=[Reward("history", length_of_history, low=0, high=1, of="turn")],
        columns={"reference": [{"letter": "a"}] * 16},
    )
    rollouts, plays = rollouts_of(tmp_path), trainer.rollout_func.played
    seen = {"".join(parts) for parts in length_of_history.seen}
    for rollout, play in zip(rollouts, plays, strict=True):
        texts = [trainer.processing_class.decode(play.ids[: run[-1] + 1]) for run in play.runs()]
        assert set(texts) <= seen
        wanted = [sum(play.ids[place] == 1 for place in run) / 2 for run in play.runs()]
        assert [turn.rewards["history"] for turn in rollout.turns] == wanted
    assert len(seen) == len(length_of_history.seen)  # identical histories are scored once


def ragged_rank(policy, folder):
    trainer = trainer_of(folder / "run", how=at_random, per_device_train_batch_size=6, max_steps=1)
    trainer.train()
    return {
        "advantages": trainer.kept["advantages"].tolist(),
        "runs": [play.runs() for play in trainer.rollout_func.played],
    }


@pytest.mark.slow
def test_a_group_may_span_two_processes(tmp_path):
    ranks = launched("tests.integrations.test_trl_turns:ragged_rank", "none", tmp_path)
    rollouts = rollouts_of(tmp_path / "run")
    assert len(rollouts) == 12
    advantages = turn_of_record(rollouts)
    for row, (own, runs) in enumerate(
        (own, runs)
        for rank in ranks
        for own, runs in zip(rank["advantages"], rank["runs"], strict=True)
    ):
        assert len(runs) == len(rollouts[row].turns)
        for turn, places in enumerate(runs):
            shown = [own[place] for place in places]
            assert shown == pytest.approx([advantages[row, turn]] * len(places), abs=1e-6)


def test_truncated_completions_without_loss_keep_their_turns_in_the_baseline(tmp_path):
    """No completion of the game ends with the end token, so all count as truncated."""
    trainer = trained(tmp_path, mask_truncated_completions=True)
    rollouts = rollouts_of(tmp_path)
    assert [len(rollout.turns) for rollout in rollouts] == [
        len(play.earned) for play in trainer.rollout_func.played
    ]
    assert any(turn.advantage for rollout in rollouts for turn in rollout.turns)
    assert not trainer.kept["advantages"].any()


def of_last_turn(rewards, weights, *, turns):
    """Return 1 at the last turn of each rollout."""
    places = torch.arange(rewards.shape[2])
    return (places == turns[..., None] - 1).to(rewards.dtype)


def test_a_user_can_name_an_estimator_for_turns_of_their_own(tmp_path):
    trained(tmp_path, advantage="tests.integrations.test_trl_turns:of_last_turn")
    for rollout in rollouts_of(tmp_path):
        wanted = [0.0] * (len(rollout.turns) - 1) + [1.0]
        assert [turn.advantage for turn in rollout.turns] == wanted
