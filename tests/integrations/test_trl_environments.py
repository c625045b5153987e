"""Tests environments with their own reward (`environment_factory` with `get_reward`)."""

import functools
import random

import pyarrow.parquet
import pytest
import torch
from datasets import Dataset
from tests.integrations.prepared import flat
from tests.integrations.variants import logged, rollouts_of, settings
from tests.refusals import config_error
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.rollouts import rollout_file
from gdpo.rollouts.record import read_declared

SAMPLES = 3
END = 0


class Counting:
    """Rewards the total that the model added up with its tool."""

    def reset(self, **kwargs):
        self.total = 0
        self.earned = []

    def increment(self, step: int) -> int:
        """
        Add to the total.

        Args:
            step: What to add.

        Returns:
            The total.
        """
        self.total += step
        self.earned.append(float(step))
        return self.total

    def get_reward(self) -> float:
        return float(self.total)


class Later(Counting):
    """Has an async reward."""

    async def get_reward(self) -> float:
        return float(self.total)


class Unpaid:
    """Has no reward."""

    def reset(self, **kwargs):
        pass

    def look(self) -> str:
        """
        Look around.

        Returns:
            What is there.
        """
        return "a wall"


def digits(completion_ids, **columns):
    """Return a reward that differs between the samples of a prompt."""
    return [float(len(ids) % 2) for ids in completion_ids]


def call_of(step):
    return f'<tool_call>\n{{"name": "increment", "arguments": {{"step": {step}}}}}\n</tool_call>'


def rows(**columns):
    prompt = [{"role": "user", "content": "count"}]
    return Dataset.from_dict({"prompt": [prompt] * 2 * SAMPLES, **columns})


def make(trainer_class, policy, config, **arguments):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = qwen3_chat_template
    arguments = {"environment_factory": Counting, "train_dataset": rows(), **arguments}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(policy)
    trainer = trainer_class(model, args=config, processing_class=tokenizer, **arguments)

    def generate(input_ids, **kwargs):
        """Return samples that call the tool with 1, call it with 3, and stop."""
        prompts = tokenizer.batch_decode(input_ids)
        second_turn = "<tool_response>" in prompts[0]
        texts = ["done"] * SAMPLES if second_turn else [call_of(1), call_of(3), "no"]
        written = [tokenizer(texts[i % SAMPLES])["input_ids"] for i in range(len(input_ids))]
        longest = 1 + max(map(len, written))
        added = torch.tensor([ids + [END] * (longest - len(ids)) for ids in written])
        return torch.cat([input_ids, added], dim=1)

    trainer.model.generate = generate
    return trainer


def options(folder, **changed):
    wanted = {
        "per_device_train_batch_size": 2 * SAMPLES,
        "num_generations": SAMPLES,
        "max_completion_length": 250,
        "max_steps": 2,
        "learning_rate": 0.1,
        "optim": "sgd",
        "reward_weights": None,
        "max_tool_calling_iterations": 1,
    }
    return settings(folder, **{**wanted, **changed})


def ours(policy, folder, *, reward_funcs=None, how=None, **changed):
    config = GDPOConfig(**options(folder, **changed))
    return make(GDPOTrainer, policy, config, reward_funcs=reward_funcs, **(how or {}))


def trl_formula(rewards, weights):
    """Return TRL's sum-then-normalize advantages, with its ε."""
    total = (rewards.float() * weights).sum(-1)
    return (total - total.mean(1, keepdim=True)) / (total.std(1, keepdim=True) + 1e-4)


def test_an_environment_that_owns_its_reward_trains_as_in_trl(tiny_policy, tmp_path):
    own = "tests.integrations.test_trl_environments:trl_formula"
    switched_off = {"pack_micro_batches": False, "completion_only_head": False}
    mine = ours(tiny_policy, tmp_path, advantage=own, **switched_off)
    theirs = make(GRPOTrainer, tiny_policy, GRPOConfig(**options(tmp_path)))
    assert mine.reward_func_names == theirs.reward_func_names == ["Counting"]
    assert mine.reward_weights.tolist() == theirs.reward_weights.tolist() == [1.0]
    assert [tool.__name__ for tool in mine.tools] == ["increment"]
    before = flat(mine.model)
    mine.train()
    theirs.train()
    assert logged(mine, "rewards/Counting/mean") == pytest.approx([4 / 3, 4 / 3])
    change, wanted = flat(mine.model) - before, flat(theirs.model) - before
    assert (change - wanted).norm() < 1e-6 * wanted.norm()


def test_its_reward_can_be_used_with_reward_functions(place):
    trainer = ours(
        *place,
        reward_funcs=[digits],
        how={"environment_factory": Later},
        reward_weights={"digits": 1.0, "Later": 0.5},
        advantage_options={"noise_floor": {"Later": 0.1}},
        gates={"digits": {"on": "Later", "at_least": 2}},
        max_steps=1,
    )
    assert trainer.reward_weights.tolist() == trainer.args.reward_weights == [1.0, 0.5]
    trainer.train()
    assert logged(trainer, "rewards/Later/mean") == pytest.approx([4 / 3])
    assert logged(trainer, "rewards/digits/gate_closed") == pytest.approx([2 / 3])


@pytest.mark.parametrize(
    ("advantage", "advantage_options"),
    [
        ("constrained_grpo", {"targets": {"digits": 0, "Counting": 1}}),
        ("sa_mrpo", {"low": [0, 0], "high": [1, 3]}),
    ],
)
def test_options_by_name_reach_it(advantage, advantage_options, place):
    trainer = ours(
        *place,
        reward_funcs=digits,
        advantage=advantage,
        advantage_options=advantage_options,
    )
    rewards = torch.rand(4, SAMPLES, 2, generator=torch.Generator().manual_seed(0)).double()
    assert trainer.compute_advantages(rewards).shape == (4, SAMPLES)


def test_the_record_has_the_range_with_the_0_of_a_closed_gate(place, tmp_path):
    class FromOne(Counting):
        reward_range = (1.0, 3.0)

    trainer = ours(
        *place,
        reward_funcs=[digits],
        how={"environment_factory": FromOne},
        gates={"FromOne": {"on": "digits", "at_least": 1}},
        rollouts_dir=str(tmp_path / "rollouts"),
        max_steps=1,
    )
    trainer.train()
    file = rollout_file(tmp_path / "rollouts", 1)
    described = read_declared(pyarrow.parquet.read_schema(file))
    assert described == {
        "digits": {},
        "FromOne": {"low": 0.0, "high": 3.0, "gate": {"on": "digits", "at_least": 1.0}},
    }


def test_weights_in_trls_order_leave_it_at_1_or_name_it_last(place):
    for weights, wanted in (([0.5], [0.5, 1.0]), ([0.5, 0.25], [0.5, 0.25])):
        trainer = ours(*place, reward_funcs=[digits], reward_weights=weights)
        assert trainer.reward_weights.tolist() == wanted


class Made:
    """Counts the environments that a function created."""

    def __init__(self, environment=Counting):
        self.environment = environment
        self.made = []

    def __call__(self):
        self.made.append(self.environment())
        return self.made[-1]


def test_a_function_that_makes_environments_is_called_no_more_often_than_by_trl(place):
    factory = Made()
    trainer = ours(
        *place,
        how={"environment_factory": factory},
        reward_weights={"Counting": 2.0},
        max_steps=1,
    )
    assert len(factory.made) == 1
    trainer.train()
    assert len(factory.made) == 2 * SAMPLES
    assert trainer.environments == factory.made


def test_a_function_draws_from_the_seed_of_the_run(place):
    drawn = []

    def factory():
        drawn.append(random.random())
        return Counting()

    for before in (1, 2):
        random.seed(before)
        ours(*place, how={"environment_factory": factory})
    assert drawn[0] == drawn[1]


def test_several_environments_have_a_reward_each_and_one_class_has_one(place):
    factories = {"a": Counting, "b": functools.partial(Later), "c": Made(Counting), "d": Unpaid}
    data = rows(environment=["a", "b"] * SAMPLES)
    trainer = ours(
        *place,
        how={"environment_factory": factories, "train_dataset": data},
        reward_weights={"Counting": 1.0, "Later": 3.0},
        max_steps=1,
    )
    assert trainer.reward_func_names == ["Counting", "Later"]
    assert trainer.reward_weights.tolist() == [1.0, 3.0]
    trainer.train()
    for reward in ("Counting", "Later"):
        assert logged(trainer, f"rewards/{reward}/mean") == pytest.approx([4 / 3])


class Paying(Counting):
    """Pays only on rows that say so, and only for calls with 3."""

    def reset(self, pays, **kwargs):
        super().reset()
        self.pays = pays

    def get_reward(self) -> float:
        return float(self.total == 3 and self.pays)


class LaterPaying(Paying):
    """Has an async reward."""

    async def get_reward(self) -> float:
        return float(self.total == 3 and self.pays)


class Batches(GDPOTrainer):
    """Records the latest batch before it is shuffled: text, tokens of tools, advantage."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batch = []
        for row in range(len(output["advantages"])):
            mask = output["completion_mask"][row].bool()
            ids, written = output["completion_ids"][row][mask], output["tool_mask"][row][mask]
            self.batch.append(
                {
                    "completion": self.processing_class.decode(ids),
                    "from_tool": self.processing_class.decode(ids[written == 0]),
                    "advantage": float(output["advantages"][row]),
                }
            )
        self.tokens = int(output["num_items_in_batch"])
        self.written = int((output["completion_mask"] * output["tool_mask"]).sum())
        return output


@pytest.mark.parametrize("rule", ["any_reward_varies", "advantage_nonzero"])
def test_groups_without_signal_are_replaced_in_their_environments(rule, tiny_policy, tmp_path):
    """Half the rows of each environment never pay, so their groups have to be replaced."""
    prompts = [[{"role": "user", "content": f"count {i}"}] for i in range(16)]
    data = Dataset.from_dict(
        {"prompt": prompts, "pays": [i % 4 < 2 for i in range(16)], "environment": ["a", "b"] * 8}
    )
    config = options(
        tmp_path,
        filter_groups=rule,
        max_filter_rounds=6,
        per_device_train_batch_size=4 * SAMPLES,
        advantage="grpo_no_std",
        rollouts_dir=str(tmp_path / "rollouts"),
    )
    trainer = make(
        Batches,
        tiny_policy,
        GDPOConfig(**config),
        environment_factory={"a": Paying, "b": LaterPaying},
        train_dataset=data,
    )
    trainer.train()
    assert min(logged(trainer, "filter/replaced")) > 0
    assert [row["advantage"] > 0 for row in trainer.batch] == [False, True, False] * 4
    for row in trainer.batch:
        assert ('"step": 3' in row["completion"]) == (row["advantage"] > 0)
        called = "step" in row["completion"]
        assert ("<tool_response>" in row["from_tool"]) == called
        assert "step" not in row["from_tool"]
    assert trainer.tokens == trainer.written
    rollouts = rollouts_of(tmp_path)
    assert {r.extra["environment"] for r in rollouts if r.trained} == {"a", "b"}
    for rollout in rollouts:
        paid = {"a": "Paying", "b": "LaterPaying"}[rollout.extra["environment"]]
        assert {name for name, value in rollout.rewards.items() if value is not None} == {paid}
        assert rollout.extra["pays"] or not rollout.trained


def missing_everything(folder, **how):
    config = GDPOConfig(**options(folder, **how.pop("changed", {})))
    return GDPOTrainer("no/such-model", args=config, **how)


def counting(completions, **columns):
    return [0.0] * len(completions)


counting.__name__ = "Counting"


def ranging(low_and_high):
    return type("Counting", (Counting,), {"reward_range": low_and_high})


@pytest.mark.parametrize(
    ("environment", "reward", "changed", "message"),
    [
        (Counting, digits, {"reward_weights": {"counting": 0.5}}, "did you mean 'Counting'"),
        (
            *(Counting, digits, {"reward_weights": [1.0, 1.0, 1.0]}),
            r"3 entries for 2 rewards \(digits, Counting\)",
        ),
        (
            *(Counting, digits, {"gates": {"Countin": {"on": "digits", "at_least": 1}}}),
            "did you mean 'Counting'",
        ),
        (
            *(Counting, digits, {"advantage_options": {"noise_floor": {"Count": 1}}}),
            "did you mean 'Counting'",
        ),
        (Counting, digits, {"advantage_options": {"noise_floor": [0.1]}}, "noise_floor"),
        (Counting, digits, {"advantage": "sa_mrpo"}, "digits, Counting"),
        (Counting, counting, {}, r"the name 'Counting'.*rename the environment class"),
        (ranging((3, 0)), None, {}, "'Counting'.*low < high"),
        (ranging((0, float("inf"))), None, {}, "'Counting'.*finite"),
        (ranging((0, "3")), None, {}, "'Counting'.*high must be a number"),
        (ranging(3), None, {}, r"'Counting'.*reward_range must be \(low, high\), got 3"),
        (ranging(property(lambda _: (0, 3))), None, {}, "'Counting'.*reward_range must be"),
    ],
)
def test_what_does_not_fit_is_an_error_before_a_model_is_loaded(
    environment, reward, changed, message, tmp_path
):
    how = {"reward_funcs": reward, "environment_factory": environment}
    with config_error(message):
        missing_everything(tmp_path, **how, changed=changed)


@pytest.mark.parametrize("how", [{}, {"reward_funcs": []}, {"environment_factory": Unpaid}])
def test_no_reward_source_is_an_error_in_trls_words(how, tmp_path):
    with config_error("No reward source provided") as done:
        missing_everything(tmp_path, train_dataset=rows(), **how)
    assert isinstance(done.value, ValueError)
