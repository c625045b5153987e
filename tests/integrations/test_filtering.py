"""Tests `filter_groups`: groups without signal are replaced, judged by each reward."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.integrations.prepared import DEAD, LONGEST, constant, half_dead, prepared
from tests.integrations.two_ranks import launched
from tests.integrations.variants import PROMPTS, SAMPLES, logged, rollouts_of, trainer_of
from tests.refusals import config_error

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.integrations.trl._groups import (
    GeneratedGroups,
    Ranks,
    further_rows,
    replace_without_signal,
)

pytestmark = pytest.mark.slow


class Filtered(GDPOTrainer):
    """Records every training batch before it is shuffled."""

    batches: list

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"].bool()
        prompts = output["prompt_mask"].bool()
        self.batches.append(
            {
                "completions": [
                    ids[m].tolist() for ids, m in zip(output["completion_ids"], mask, strict=True)
                ],
                "prompts": [
                    self.processing_class.decode(ids[m])
                    for ids, m in zip(output["prompt_ids"], prompts, strict=True)
                ],
                "advantages": output["advantages"].tolist(),
                "tokens": int(output["num_items_in_batch"]),
                "old": None
                if "old_per_token_logps" not in output
                else (output["old_per_token_logps"] != 0).sum(1).tolist(),
            }
        )
        return output


def make(policy, folder, *, rewards=(half_dead,), rows=24, rollout_func=prepared, **changed):
    torch.manual_seed(0)
    wanted = {
        "filter_groups": "any_reward_varies",
        "max_completion_length": LONGEST,
        "advantage": "grpo_no_std",
        "max_steps": 2,
    }
    data = [PROMPTS[i % 6] for i in range(rows)]
    how = {
        "train_dataset": Dataset.from_dict({"prompt": data}),
        "eval_dataset": Dataset.from_dict({"prompt": list(DEAD)}),
        "rollout_func": rollout_func,
    }
    options = {**wanted, **changed, "rewards": list(rewards), "how": how}
    trainer = trainer_of(Filtered, GDPOConfig, policy, folder, **options)
    trainer.batches = []
    return trainer


def filtered(policy, folder, **changed):
    trainer = make(policy, folder, **changed)
    trainer.train()
    return trainer


def groups_of(values):
    return [values[i : i + SAMPLES] for i in range(0, len(values), SAMPLES)]


def assert_consistent(batch):
    """Check that every rollout has the advantage of its own completion."""
    rewards = half_dead(batch["completions"], batch["prompts"])
    parts = (groups_of(part) for part in (rewards, batch["prompts"], batch["advantages"]))
    for values, prompts, advantages in zip(*parts, strict=True):
        assert len(set(prompts)) == 1
        expected = np.array(values) - np.mean(values)
        np.testing.assert_allclose(advantages, expected, atol=1e-6)


@pytest.mark.parametrize("rule", ["any_reward_varies", "advantage_nonzero"])
def test_groups_without_signal_are_replaced(rule, place):
    run = filtered(*place, filter_groups=rule, max_filter_rounds=6, num_iterations=2)
    assert sum(logged(run, "filter/rounds")) > 0
    for batch in run.batches:
        assert len(batch["advantages"]) == 12
        assert_consistent(batch)
        assert all(any(group) for group in groups_of(batch["advantages"]))
        assert not set(batch["prompts"]) & set(DEAD)
        lengths = [len(ids) for ids in batch["completions"]]
        assert batch["tokens"] == sum(lengths)
        assert batch["old"] == lengths
    assert logged(run, "frac_reward_zero_std") == [0.0]


@pytest.fixture(scope="module")
def pair(tiny_policy, tmp_path_factory):
    """Return a step without and with replacement, and from what the estimator of each learned."""
    changed = {"per_device_train_batch_size": 24, "max_filter_rounds": 6, "max_steps": 1}
    runs = []
    for rule in ("off", "any_reward_varies"):
        run = make(tiny_policy, tmp_path_factory.mktemp(rule), filter_groups=rule, **changed)
        run.learned = []
        run._objective.rule.update = lambda rewards, _, run=run: run.learned.append(rewards)
        run.train()
        runs.append(run)
    return runs


def test_live_groups_stay_where_they_are(pair):
    plain, run = pair
    before, after = (groups_of(r.batches[0]["completions"]) for r in pair)
    alive = [any(group) for group in groups_of(plain.batches[0]["advantages"])]
    assert 0 < sum(alive) < len(alive)
    assert [a == b for a, b in zip(before, after, strict=True)] == alive
    assert logged(run, "filter/replaced") == [alive.count(False) / len(alive)]


def test_generation_ends_after_so_many_rounds(place):
    run = filtered(*place, rewards=[constant], max_filter_rounds=2)
    assert run.calls == 2 * 3
    assert logged(run, "filter/rounds") == [2.0, 2.0]
    assert logged(run, "filter/replaced") == [0.0, 0.0]
    assert logged(run, "filter/generated") == [3.0, 3.0]
    assert logged(run, "frac_reward_zero_std") == [1.0, 1.0]
    plain = filtered(*place, rewards=[constant], filter_groups="off", max_steps=1)
    assert run.batches[0] == plain.batches[0]


def up(completion_ids, **columns):
    return [float(i % 2) for i in range(len(completion_ids))]


def twice_down(completion_ids, **columns):
    return [-2 * value for value in up(completion_ids)]


@pytest.mark.parametrize(
    ("weights", "any_varies", "nonzero"),
    [([1.0, 0.5], 0, 0), ([1.0, 1.0], 0, 2), ([0.0, 0.0], 2, 2)],
)
def test_a_group_is_judged_by_each_reward_and_not_by_their_sum(weights, any_varies, nonzero, place):
    """With weights 1 and 1/2 the sum is constant, but the normalized rewards are not."""
    for rule, rounds in (("any_reward_varies", any_varies), ("advantage_nonzero", nonzero)):
        run = filtered(
            *place,
            rewards=[up, twice_down],
            reward_weights=weights,
            advantage="gdpo",
            filter_groups=rule,
            max_filter_rounds=2,
            max_steps=1,
        )
        assert logged(run, "filter/rounds") == [rounds]


def test_a_reward_behind_closed_gates_does_not_vary(place):
    gates = {"half_dead": {"on": "constant", "at_least": 2}}
    run = filtered(*place, rewards=[half_dead, constant], gates=gates, max_steps=1)
    assert logged(run, "filter/rounds") == [3.0]
    assert logged(run, "rewards/half_dead/gate_closed") == [1.0]


def test_what_trl_logs_and_an_estimator_learns_from_is_the_first_generation(pair):
    plain, run = pair
    assert logged(run, "filter/rounds")[0] > 0
    for key in ("rewards/half_dead/mean", "reward_std", "completions/mean_length"):
        assert logged(run, key) == logged(plain, key)
    assert logged(run, "num_tokens") > logged(plain, "num_tokens")
    for key in ("prompt", "completion"):
        assert list(run._logs[key]) == list(plain._logs[key])
    batch = plain.batches[0]
    assert list(run._logs["advantages"]) == batch["advantages"]
    rewards = half_dead(batch["completions"], batch["prompts"])
    assert run.learned[0].flatten().tolist() == rewards


def test_the_record_holds_what_was_generated_and_what_was_trained(place, tmp_path):
    run = filtered(*place, max_filter_rounds=6, rollouts_dir=str(tmp_path / "rollouts"))
    assert len(run.batches) == 2
    for step, batch in enumerate(run.batches, start=1):
        rollouts = rollouts_of(tmp_path, step)
        assert len(rollouts) == 12 * logged(run, "filter/generated")[step - 1]
        for rollout in rollouts:
            assert rollout.advantage == 0 or rollout.prompt not in DEAD
        recorded = sorted(r.advantage for r in rollouts if r.trained)
        assert recorded == sorted(batch["advantages"])
        assert all(r.advantage == 0 for r in rollouts if not r.trained)
        groups = {r.group_id: r.prompt for r in rollouts}
        assert all(r.prompt == groups[r.group_id] for r in rollouts)


def test_an_evaluation_is_of_its_own_prompts(place):
    trainer = make(*place, per_device_eval_batch_size=12)
    trainer.evaluate()
    assert trainer.calls == 1
    assert set(trainer.batches[0]["prompts"]) == set(DEAD)


def test_token_counts_go_with_their_groups(place):
    run = filtered(
        *place,
        advantage="gdpo",
        advantage_options={"token_counts": True},
        max_filter_rounds=6,
        max_steps=1,
    )
    batch = run.batches[0]
    rewards = np.array(half_dead(batch["completions"], batch["prompts"])).reshape(-1, SAMPLES, 1)
    tokens = np.array([len(ids) for ids in batch["completions"]]).reshape(-1, SAMPLES)
    from gdpo import gdpo

    expected = gdpo(rewards, [1.0], token_counts=tokens)
    np.testing.assert_allclose(np.ravel(expected), batch["advantages"], atol=1e-5)


def test_further_prompts_are_drawn_alike_from_the_same_seed_only():
    rows = [{"prompt": str(i)} for i in range(100)]
    first = further_rows(rows, 10, (7, 1, 500))
    assert first == further_rows(rows, 10, (7, 1, 500))
    assert first != further_rows(rows, 10, (7, 1, 501))
    assert len({row["prompt"] for row in first}) == 10
    assert len(further_rows(rows[:3], 10, (7, 1, 500))) == 10
    first[0]["prompt"] = "changed"
    assert all(row["prompt"] != "changed" for row in rows)


def test_every_rank_replaces_its_own_groups_and_all_generate_as_many():
    def groups(alive):
        return GeneratedGroups(torch.tensor(alive).view(-1, 1, 1), None, {}, None)

    asked = []

    def more(count):
        asked.append(count)
        return groups([1.0, 0.0, 0.0, 1.0, 0.0, 1.0] if count == 3 else [0.0, 0.0] * count)

    generated = replace_without_signal(
        groups([0.0, 0.0, 0.0, 1.0, 0.0, 1.0]),
        more=more,
        have_signal=lambda g: [bool(value) for value in g.rewards.flatten()],
        ranks=Ranks(2, 0),
        rounds=2,
    )
    assert asked == [3, 2]
    assert generated[0].places == [None, 1, 2, 3, None, 5]
    assert generated[1].places == [0, None, None, 4, None, None]
    assert generated[2].places == [None] * 4


def test_data_without_numbered_rows_is_refused(place):
    stream = {"train_dataset": Dataset.from_dict({"prompt": PROMPTS}).to_iterable_dataset()}
    options = {"how": stream, "filter_groups": "advantage_nonzero"}
    with config_error("IterableDataset"):
        trainer_of(GDPOTrainer, GDPOConfig, *place, **options)


def batches_of_a_rank(policy, folder):
    run = filtered(
        policy,
        folder / "run",
        per_device_train_batch_size=8,
        max_filter_rounds=6,
        rollouts_dir=str(folder / "rollouts"),
    )
    return run.batches


def test_two_processes_replace_their_own_groups(place, tmp_path):
    ranks = launched("tests.integrations.test_filtering:batches_of_a_rank", *place)
    assert len(ranks[0]) == 2
    for step, (first, second) in enumerate(zip(*ranks, strict=True), start=1):
        for batch in (first, second):
            assert len(batch["advantages"]) == 8
            assert_consistent(batch)
            assert not set(batch["prompts"]) & set(DEAD)
        both = first["completions"] + second["completions"]
        assert first["tokens"] == second["tokens"] == sum(map(len, both))
        rollouts = rollouts_of(tmp_path, step)
        recorded = sorted(r.advantage for r in rollouts if r.advantage)
        assert recorded == sorted(a for b in (first, second) for a in b["advantages"] if a)
