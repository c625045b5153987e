"""Tests the adapter for ms-swift against recorded interfaces of ms-swift."""

import pytest
import torch
from numpy.testing import assert_allclose
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import WEIGHTS, by_formula, install, scored
from tests.refusals import config_error, data_error

from gdpo import Reward
from gdpo.lab.tasks import resolve_task
from gdpo.rewards import Gate
from gdpo.rewards.length import token_limit

SIZE = 4


def share_of_vowels(completion, reference):
    return sum(c in reference["vowels"] for c in completion) / max(1, len(completion))


def only_long(completion, reference):
    return 1.0 if len(completion) > 3 else None


vowels = Reward("vowels", share_of_vowels, low=0, high=1)
long = Reward("long", only_long, low=0, high=1)


class ORM:
    """Stands in for the base class of ms-swift's rewards."""

    def __init__(self, args=None, **kwargs):
        self.args = args


def summing(name):
    """Return a stand-in for one of ms-swift's functions of advantages: a weighted sum."""

    def compute(
        *,
        rewards_per_func,
        reward_weights,
        num_generations=None,
        prompt_ids=None,
        request_ids=None,
        advantage_estimator="grpo",
        scale_rewards="group",
        kl_in_reward=False,
        beta=0.0,
    ):
        return "its own", (rewards_per_func * reward_weights).nansum(1)

    compute.__name__ = name
    return compute


@pytest.fixture
def swift(monkeypatch):
    """Install stand-ins for ms-swift's modules."""
    names = ("compute_advantages", "compute_advantages_dynamic")
    functions = {name: summing(name) for name in names}
    contents = {"swift.rewards": {"ORM": ORM, "orms": {"format": ORM}}}
    contents |= dict.fromkeys(("swift.rl_core.advantage", "swift.trainer"), functions)
    return install(monkeypatch, **contents)


@pytest.fixture
def register_rewards(swift):
    return adapter("ms_swift").register_rewards


@pytest.fixture
def use_estimator(swift):
    return adapter("ms_swift").use_estimator


def random_scores():
    return torch.tensor(scored(12), dtype=torch.float32)


def by_float32():
    return by_formula(random_scores().double().numpy(), [SIZE] * 3)


def computed(swift, name="compute_advantages", rewards=None, **more):
    given = {
        "rewards_per_func": random_scores() if rewards is None else rewards,
        "reward_weights": torch.tensor(WEIGHTS),
        "advantage_estimator": "grpo",
        "scale_rewards": "gdpo",
        "kl_in_reward": False,
        "beta": 0.04,
    }
    if name == "compute_advantages":
        given["num_generations"] = SIZE
    return getattr(swift["swift.trainer"], name)(**(given | more))


def test_rewards_are_registered_by_name_and_score_as_they_do_everywhere(swift, register_rewards):
    register_rewards([vowels, long])
    orms = swift["swift.rewards"].orms
    columns = {"reference": ['{"vowels": "ae"}', {"vowels": "z"}], "messages": [[], []]}
    made = orms["vowels"](args=None)
    assert made(["aebb", "zz"], **columns) == [0.5, 1.0]
    assert orms["long"]()(["aebb", "zz"], **columns) == [1.0, None]
    parts = [{"type": "text", "text": "ae"}, {"type": "text", "text": "bb"}]
    assert made([parts, None], **columns) == [0.5, 0.0]
    assert isinstance(made, ORM)
    assert type(made).__name__ == "vowels", "the name in logs and dumps"


def test_a_gated_reward_is_0_where_its_condition_is_not_met(swift, register_rewards):
    register_rewards(resolve_task("gsm8k").rewards, gates={"format": Gate("correctness", 1)})
    orms, columns = swift["swift.rewards"].orms, {"reference": ['{"answer": "42"}'] * 2}
    texts = [resolve_task("gsm8k").gold_completion({"answer": answer}) for answer in ("42", "41")]
    assert orms["correctness"]()(texts, **columns) == [1.0, 0.0]
    assert orms["format"]()(texts, **columns) == [1.0, 0.0]


def test_a_reward_of_tokens_gets_the_tokens_of_every_turn(swift, register_rewards):
    register_rewards([token_limit(3)])
    score = swift["swift.rewards"].orms["length"]()
    columns = {"reference": ["{}", "{}"]}
    assert score(["a", "b"], response_token_ids=[[[1, 2], [3, 4]], [1, 2]], **columns) == [0, 1]
    with config_error(r"length.*num_tokens"):
        score(["a", "b"], response_token_ids=[None, None], **columns)


def test_data_without_the_column_or_with_something_else_in_it_is_refused(swift, register_rewards):
    register_rewards([vowels], column="truth")
    score = swift["swift.rewards"].orms["vowels"]()
    with data_error("column 'truth'"):
        score(["a"], reference=["{}"])
    with data_error("column 'truth'"):
        score(["a"], truth=["42"])


def test_groups_get_the_advantages_of_the_formula_and_the_totals_stay(swift, use_estimator):
    use_estimator()
    advantages, totals = computed(swift)
    assert advantages.dtype == torch.float32
    assert_allclose(advantages, by_float32(), rtol=0, atol=1e-6)
    assert_allclose(totals, random_scores() @ torch.tensor(WEIGHTS), atol=1e-6)


def test_samples_with_ids_are_grouped_by_prompt_and_count_once_for_each_request(
    swift, use_estimator
):
    use_estimator()
    rows = [*range(12), 0, 7]
    advantages, _ = computed(
        swift,
        "compute_advantages_dynamic",
        random_scores()[rows],
        prompt_ids=[f"p{row // SIZE}" for row in rows],
        request_ids=[f"r{row}" for row in rows],
    )
    assert_allclose(advantages, by_float32()[rows], rtol=0, atol=1e-6)


def test_what_is_not_gdpo_stays_ms_swifts(swift, use_estimator):
    use_estimator()
    assert computed(swift, scale_rewards="group", advantage_estimator="rloo")[0] == "its own"


@pytest.mark.parametrize(
    "wrong", [{"advantage_estimator": "reinforce_plus_plus"}, {"kl_in_reward": True}]
)
def test_switches_that_would_have_no_effect_are_refused(swift, use_estimator, wrong):
    use_estimator()
    with config_error("estimator 'gdpo'"):
        computed(swift, **wrong)
    assert computed(swift, kl_in_reward=True, beta=0.0)[0] is not None


def test_an_unknown_estimator_changes_nothing(swift, use_estimator):
    with config_error("did you mean 'gdpo'"):
        use_estimator("gpdo")
    assert computed(swift)[0] == "its own"
