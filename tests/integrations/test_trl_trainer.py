"""Tests what GDPOTrainer adds to TRL's trainer: metrics, records, names and early errors."""

import functools
import logging

import numpy as np
import pytest
import torch
from datasets import Dataset
from numpy.testing import assert_allclose, assert_array_equal
from tests.integrations.variants import (
    WEIGHTS,
    bytes_written,
    digits,
    logged,
    make,
    rollouts_of,
    scored_again,
    settings,
    trained,
)
from tests.pairs import every_pair
from tests.refusals import config_error, data_error, reward_error

from gdpo import Reward, gdpo
from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.rewards import Scorer, apply_gates
from gdpo.rewards.length import token_limit
from gdpo.rewards.named import read_gates


def parity(completions, **columns):
    """Return a reward that depends only on the prompt, so it varies in no group."""
    return [float(len(prompt) % 2) for prompt in columns["prompts"]]


def groups_of(batch):
    """Return the rewards of a batch, `[prompt, sample, reward]`."""
    return np.array(batch["rewards"]).reshape(-1, 4, 2)


def test_frac_reward_zero_std_counts_the_groups_that_train_nothing(place):
    """TRL's own value is 0 here, because it uses the std of the whole batch."""
    rewards = [parity, digits]
    trainer = trained("ours", *place, rewards=rewards, reward_weights=None)
    for batch, share in zip(trainer.record, logged(trainer, "frac_reward_zero_std"), strict=True):
        groups = groups_of(batch)[..., 1]
        assert share == pytest.approx((np.ptp(groups, axis=1) == 0).mean())


def test_the_record_of_a_step_holds_every_rollout(place, tmp_path):
    trainer = trained("ours", *place, rollouts_dir=str(tmp_path / "rollouts"), run_name="try")
    assert len(trainer.record) == 3
    for step, batch in enumerate(trainer.record, start=1):
        rollouts = rollouts_of(tmp_path, step)
        assert [r.group_id for r in rollouts] == [0] * 4 + [1] * 4 + [2] * 4
        assert [r.sample_id for r in rollouts] == [0, 1, 2, 3] * 3
        assert_array_equal([r.advantage for r in rollouts], batch["advantages"])
        names = ["bytes_written", "digits", "sometimes_vowels"]
        values = [[r.rewards[name] for name in names] for r in rollouts]
        assert_array_equal(np.array(values, dtype=np.float32), batch["rewards"])
        assert [r.rewards for r in rollouts] == [scored_again(r.completion) for r in rollouts]
        assert {r.run for r in rollouts} == {"try"}
        assert {r.step for r in rollouts} == {step}
        assert list(rollouts[0].weights.values()) == WEIGHTS
        assert len({r.prompt for r in rollouts if r.group_id == 0}) == 1
        assert all(r.finish_reason == "stop" for r in rollouts if r.num_tokens < 12)
        assert {r.finish_reason for r in rollouts} <= {"stop", "length"}


def answers():
    rows = [{"prompt": p, "reference": {"answer": p[0]}} for p in ["count", "say", "what"] * 4]
    return Dataset.from_list(rows)


def has_answer(completion, reference):
    return float(reference["answer"] in completion)


def trainer_of(model, folder, rewards, **changed):
    config = GDPOConfig(**settings(folder, **{"reward_weights": None, **changed}))
    return GDPOTrainer(str(model), rewards, config, train_dataset=answers())


def test_a_reward_object_gets_the_text_and_the_reference(place):
    weights = {"digits": 0.5, "has_answer": 1.0}
    rewards = [Reward("has_answer", has_answer, -1.0, 1.0), digits]
    changed = {"reward_weights": weights, "max_steps": 1, "diagnostics": "full"}
    trainer = trainer_of(*place, rewards, **changed)
    trainer.train()
    assert trainer.reward_weights.tolist() == [1.0, 0.5]
    assert logged(trainer, "rewards/has_answer/failed") == [0.0]
    (mean,) = logged(trainer, "rewards/has_answer/mean")
    assert 0 <= mean <= 1
    saturation = logged(trainer, "diagnostics/has_answer/saturation")  # of the declared range
    assert saturation == pytest.approx([(mean + 1) / 2])


def test_a_reward_object_that_fails_is_missing_and_counted(place, caplog):
    def fails_on_even_length(completion, reference):
        return 1.0 / (len(completion) % 2)

    rewards = [Reward("odd", fails_on_even_length, 0.0, 1.0), digits]
    trainer = trainer_of(*place, rewards, max_steps=1)
    trainer.train()
    (failed,) = logged(trainer, "rewards/odd/failed")
    assert 0 < failed < 1
    assert "ZeroDivisionError" in caplog.text
    assert logged(trainer, "rewards/odd/mean") == [1.0]


def test_the_start_tells_whether_the_reward_with_the_largest_weight_always_wins(place, caplog):
    rewards = [Reward(name, lambda *_: 0.0, 0.0, 1.0) for name in ("right", "short")]

    def told(rewards, **changed):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="gdpo"):
            trainer_of(*place, rewards, **changed)
        return [(r.levelname, r.getMessage()) for r in caplog.records if "priority" in r.msg]

    ((level, text),) = told(rewards, reward_weights=[1.0, 1.0], advantage="grpo")
    assert level == "WARNING"
    assert "right does not always win" in text
    ((level, text),) = told(rewards, reward_weights=[1.5, 1.0], advantage="grpo")
    assert level == "INFO"
    assert "its weight 1.5 is above 1" in text
    assert told([rewards[0], digits], reward_weights=None) == []
    rising = {"schedules": {"short": {"from": 1.0, "to": 9.0, "steps": 5}}}
    given = {"reward_weights": [1.5, 1.0], "advantage": "grpo", "advantage_options": rising}
    assert told(rewards, **given) == []
    huge = Reward("huge", lambda *_: 0.0, -1e308, 1e308)
    assert told([rewards[0], huge], reward_weights=[1.5, 1.0], advantage="grpo") == []


def test_all_reward_objects_score_a_batch_once_with_its_text_and_its_tokens(place, monkeypatch):
    batches = []

    def watched(self, completions, references, *, num_tokens=None, **options):
        batches.append((list(completions), list(num_tokens)))
        return original(self, completions, references, num_tokens=num_tokens, **options)

    original = Scorer.score
    monkeypatch.setattr(Scorer, "score", watched)
    rewards = [Reward("has_answer", has_answer, 0.0, 1.0), digits, token_limit(4)]
    trainer = trainer_of(*place, rewards, max_steps=2)
    trainer.train()
    assert len(batches) == 2
    shares = [sum(n <= 4 for n in tokens) / len(tokens) for _, tokens in batches]
    assert logged(trainer, "rewards/length/mean") == pytest.approx(shares)
    assert all(len(texts) == len(tokens) == 12 for texts, tokens in batches)


def test_the_scorer_s_options_reach_it_and_failures_are_logged_by_kind(place):
    def fails(completion, reference):
        raise KeyError("x")

    rewards = [Reward("bad", fails, -2.0, 1.0), digits]
    trainer = trainer_of(*place, rewards, max_steps=1, scorer={"on_error": "worst"})
    trainer.train()
    assert logged(trainer, "rewards/bad/failed") == [1.0]
    assert logged(trainer, "rewards/bad/failed_raised_keyerror") == [1.0]
    assert logged(trainer, "rewards/bad/mean") == [-2.0]
    with config_error("'worker'"):
        trainer_of(*place, digits, scorer={"worker": 2})


def raises(completions, **columns):
    raise KeyError("solution")


def too_few(completions, **columns):
    return [1.0]


def not_a_number(completions, **columns):
    return [float("nan")] * len(completions)


def infinite(completions, **columns):
    return [1.0] * (len(completions) - 1) + [float("inf")]


def words(completions, **columns):
    return ["good"] * len(completions)


def generator(completions, **columns):
    yield from map(float, completions)


def one_number(completions, **columns):
    return 1.0


async def too_few_later(completions, **columns):
    return [1.0]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raises, r"'raises' .*KeyError: .*solution.* \(.*line \d+\)"),
        (too_few, r"'too_few' .*1 values .*12"),
        (not_a_number, r"'not_a_number' .*nan .*completion 0 of 12"),
        (infinite, r"'infinite' .*inf .*completion 11 of 12"),
        (words, "'words' returned 'good'"),
        (generator, "'generator' returned"),
        (one_number, r"'one_number' .*1.0"),
        (too_few_later, r"'too_few_later' .*1 values .*12"),
    ],
)
def test_a_reward_function_that_breaks_its_contract_is_named(reward, message, place):
    trainer = make("ours", *place, rewards=[reward, digits], reward_weights=None)
    with reward_error(message):
        trainer.train()


def test_an_infinite_reward_of_a_reward_model_is_named(place):
    trainer = make("ours", *place)
    rewards = torch.zeros(3, 4, 3)
    rewards[2, 1, 1] = -torch.inf
    with data_error(r"'digits' .*-inf .*prompt 2, sample 1"):
        trainer.compute_advantages(rewards)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"advantage": "gpdo"}, "did you mean 'gdpo'"),
        ({"advantage": "nowhere:f"}, "'nowhere'"),
        ({"advantage": "math:pi"}, "math:pi.*float"),
        ({"advantage": "math:sinn"}, "did you mean 'sin"),
        ({"advantage": abs}, "advantage=<built-in function abs>: .*module:attribute"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "advantage='gdpo'"),
        ({"scale_rewards": "none"}, "grpo_no_std"),
        ({"filter_groups": "any_reward_vary"}, "did you mean 'any_reward_varies'"),
        ({"filter_groups": False}, "filter_groups False: .*advantage_nonzero"),
        ({"max_filter_rounds": 0}, "max_filter_rounds .*at least 1, got 0"),
        ({"max_filter_rounds": 1.5}, "max_filter_rounds .*got 1.5"),
        ({"max_filter_rounds": True}, "max_filter_rounds .*got True"),
        ({"pack_micro_batches": "off"}, "pack_micro_batches='off'"),
        ({"completion_only_head": None}, "completion_only_head=None"),
        ({"fast_generation": "auto"}, "fast_generation='auto'"),
        # One ratio per rollout does not fit advantages of turns:
        (
            {"advantage": "turn_gdpo", "importance_sampling_level": "sequence"},
            "importance_sampling_level='token'",
        ),
        ({"advantage": "turn_gdpo", "loss_type": "vespo"}, "loss_type='dapo'"),
    ],
)
def test_a_setting_that_is_wrong_or_without_effect_is_an_error(changed, message, tmp_path):
    with config_error(message):
        GDPOConfig(**settings(tmp_path, **changed))


def transposed(rewards, weights):
    return rewards.sum(-1).nan_to_num().T.contiguous()


def misspelt(rewards, weights):
    return rewrds.sum(-1)  # noqa: F821


PAIR = [bytes_written, digits]
TRANSPOSED, MISSPELT = f"{__name__}:transposed", f"{__name__}:misspelt"


@pytest.mark.parametrize(
    ("rewards", "changed", "message"),
    [
        ([digits, digits], {}, "the name 'digits'"),
        (PAIR, {"reward_weights": [1.0]}, "1 entries for 2 rewards"),
        (PAIR, {"reward_weights": {"digit": 1.0}}, "did you mean 'digits'"),
        (
            [digits],
            {"advantage": TRANSPOSED},
            rf"'{TRANSPOSED}' .*shape \(16, 6\): return an array \[prompt, sample\]",
        ),
        (
            [digits],
            {"advantage": MISSPELT},
            f"'{MISSPELT}' .*NameError: .*'rewrds'.*correct the function",
        ),
        ([digits], {"advantage": "os:system"}, r"'os:system' .*\(rewards, weights\)"),
        (PAIR, {"advantage_options": {"nose_floor": 1}}, "did you mean 'noise_floor'"),
        (PAIR, {"advantage": "sa_mrpo"}, "'low' .*bytes_written"),
        (PAIR, {"gates": {"digits": {"on": "letters", "at_least": 1}}}, "'letters'"),
        (PAIR, {"gates": {"digits": "bytes_written"}}, "gates.*digits"),
        (PAIR, {"gates": {"digits": {"on": "bytes_written"}}}, "gates.*digits"),
    ],
)
def test_what_does_not_fit_is_named_before_a_model_is_loaded(rewards, changed, message, tmp_path):
    with config_error(message):
        trainer_of("no/such-model", tmp_path, rewards, **changed)


def test_trls_own_config_is_refused_with_the_remedy(tmp_path):
    from trl import GRPOConfig

    with config_error("GDPOConfig"):
        GDPOTrainer("no/such-model", [digits], GRPOConfig(**settings(tmp_path)))


def test_a_batch_of_one_group_gives_one_warning(place, caplog):
    changed = {"per_device_train_batch_size": 4, "max_steps": 2}
    trainer = make("ours", *place, **changed)
    trainer.evaluate()
    assert "per_device_train_batch_size" not in caplog.text
    trainer.train()
    assert caplog.text.count("per_device_train_batch_size") == 1
    caplog.clear()
    for variant, size in (("ours_grpo", 4), ("ours", 8)):
        changed = {"per_device_train_batch_size": size, "max_steps": 1}
        make(variant, *place, **changed).train()
    assert "per_device_train_batch_size" not in caplog.text


def test_positional_arguments_are_trls_and_the_users_config_stays_as_it_was(tiny_policy, tmp_path):
    args = GDPOConfig(**settings(tmp_path, reward_weights={"digits": 2.0}))
    trainer = GDPOTrainer(str(tiny_policy), [digits], args, answers())
    assert len(trainer.train_dataset) == 12
    assert args.reward_weights == {"digits": 2.0}


def test_trls_argument_parser_takes_our_config():
    from trl import TrlParser

    (config,) = TrlParser(GDPOConfig).parse_args_and_config(
        [
            *("--output_dir", "x", "--advantage", "grpo", "--reward_weights", "1", "2"),
            *("--use_cpu", "--model_init_kwargs", '{"dtype": "float32"}'),
        ]
    )
    assert (config.advantage, config.reward_weights) == ("grpo", [1.0, 2.0])
    assert config.model_init_kwargs == {"dtype": "float32"}


def test_options_gates_and_token_counts_come_from_the_config(place, tmp_path):
    trainer = trained(
        "ours",
        *place,
        rewards=[bytes_written, digits],
        reward_weights=None,
        advantage_options={"token_counts": True, "max_advantage": 1.0},
        gates={"digits": {"on": "bytes_written", "at_least": 48}},
        rollouts_dir=str(tmp_path / "rollouts"),
    )
    assert len(trainer.record) == 3
    for step, batch in enumerate(trainer.record, start=1):
        rewards = groups_of(batch)
        assert np.all(rewards[rewards[..., 0] < 48, 1] == 0)
        rollouts = rollouts_of(tmp_path, step)
        tokens = np.array([r.num_tokens for r in rollouts]).reshape(-1, 4)
        wanted = gdpo(rewards, [1, 1], token_counts=tokens, max_advantage=1.0)
        assert_allclose(np.ravel(wanted), batch["advantages"], atol=1e-5)
    assert 0 < logged(trainer, "rewards/digits/gate_closed")[0] < 1


def test_a_gate_on_the_mean_of_a_group_is_that_of_the_arrays(place):
    def first_step(gates):
        changed = {"rewards": [bytes_written, digits], "reward_weights": None, "max_steps": 1}
        trainer = trained("ours", *place, gates=gates, **changed)
        return trainer, groups_of(trainer.record[0])

    _, raw = first_step(None)
    means = raw[..., 0].mean(axis=1)
    at_least = float(np.median(means))
    gates = {"digits": {"on": "bytes_written", "at_least": at_least, "of": "group"}}
    trainer, gated = first_step(gates)
    assert_allclose(gated, apply_gates(raw, ["bytes_written", "digits"], read_gates(gates)))
    assert_allclose(np.ravel(gdpo(gated, [1, 1])), trainer.record[0]["advantages"], atol=1e-5)
    closed = logged(trainer, "rewards/digits/gate_closed")[0]
    assert 0 < closed == np.mean(means < at_least) < 1


def test_the_metrics_of_trl_become_at_most_36_with_three_rewards(tiny_policy, tmp_path):
    def metrics_of(variant):
        trainer = trained(variant, tiny_policy, tmp_path / variant, max_steps=1)
        return {key for entry in trainer.state.log_history[:-1] for key in entry} - {"step"}

    theirs, ours = metrics_of("theirs"), metrics_of("ours")
    assert theirs < ours
    assert len(ours) <= 36
    names = ("bytes_written", "digits", "sometimes_vowels")
    numbers = ("zero_variance_groups", "influence_share")
    wanted = {f"rewards/{name}/{number}" for name in names for number in numbers}
    assert ours - theirs == {*wanted, "diagnostics/warnings"}


def test_all_metrics_of_the_diagnosis_are_logged_on_demand(place):
    changed = {"reward_weights": None, "diagnostics": "full"}
    trainer = trained("ours", *place, rewards=[bytes_written, parity], **changed)
    assert logged(trainer, "rewards/parity/zero_variance_groups") == [1.0] * 3
    assert logged(trainer, "rewards/bytes_written/zero_variance_groups") == [0.0] * 3
    assert logged(trainer, "rewards/bytes_written/influence_share") == pytest.approx([1.0] * 3)
    assert logged(trainer, "rewards/parity/influence_share") == [0.0] * 3
    assert logged(trainer, "rewards/parity/group_std") == [0.0] * 3
    stds = logged(trainer, "rewards/bytes_written/group_std")
    for batch, std in zip(trainer.record, stds, strict=True):
        groups = groups_of(batch)[..., 0]
        assert std == pytest.approx(groups.std(axis=1, ddof=1).mean())
    assert len(logged(trainer, "diagnostics/parity/missing")) == 3
    for twice in ("diagnostics/parity/mean", "diagnostics/zero_advantage_groups"):
        assert not logged(trainer, twice)  # TRL's rewards/parity/mean, frac_reward_zero_std
    for batch, largest in zip(trainer.record, logged(trainer, "diagnostics/largest"), strict=True):
        assert largest == pytest.approx(np.abs(batch["advantages"]).max())


def test_a_lasting_warning_is_logged_once(place, caplog):
    def fewer_bytes(completions, **columns):
        return [-value / 1000 for value in bytes_written(completions)]

    trainer = trained(
        "ours",
        *place,
        rewards=[bytes_written, fewer_bytes],
        reward_weights=[1.0, 0.5],
        max_steps=7,
        per_device_train_batch_size=32,
    )
    assert logged(trainer, "diagnostics/warnings") == [0] * 4 + [1] * 3  # as many as texts
    messages = caplog.messages
    assert len(messages) == len(set(messages))
    assert any("bytes_written" in text and "fewer_bytes" in text for text in messages)
    assert messages[0].startswith("gdpo, step 5: ")


def on_top_of(constant):
    def digits_on_top(completions, **columns):
        return [constant + value for value in digits(completions)]

    async def digits_later(completions, **columns):
        return digits_on_top(completions)

    return digits_on_top, digits_later


@pytest.fixture(scope="module")
def step_of(tiny_policy, tmp_path_factory):
    """Return a function that trains one step with a reward, and returns its rollouts."""

    @functools.cache
    def rollouts(reward, advantage):
        folder = tmp_path_factory.mktemp("step")
        changed = {"advantage": advantage, "reward_weights": None, "max_steps": 1}
        changed["rollouts_dir"] = str(folder / "rollouts")
        make("ours", tiny_policy, folder, rewards=[reward], **changed).train()
        return rollouts_of(folder)

    return rollouts


# 6 combinations of 12.
@every_pair(constant=[1e5, 1e6, 1e9], advantage=["gdpo", "grpo"], later=[False, True])
def test_a_reward_keeps_its_signal_on_top_of_a_large_constant(advantage, constant, later, step_of):
    """In float32, TRL's precision, 1e9 and 1e9 + 1 are equal."""
    reward = on_top_of(constant)[later]
    plain, shifted = step_of(digits, advantage), step_of(reward, advantage)
    advantages = [each.advantage for each in plain]
    assert max(advantages) > 0.5
    assert_allclose([each.advantage for each in shifted], advantages, atol=1e-5)
    wanted = [constant + each.rewards["digits"] for each in plain]
    assert [each.rewards[reward.__name__] for each in shifted] == wanted
