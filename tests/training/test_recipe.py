"""Recipes: defaults, and a clear message for every mistake."""

import numpy as np
import pytest
from tests.refusals import config_error, refusal

from gdpo.lab.experiments.grid import make_grid
from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.read import load_recipe, read_recipe
from gdpo.lab.recipes.recipe import DataConfig, Recipe, differences
from gdpo.lab.recipes.resolve import find_rewards, resolve
from gdpo.lab.tasks import TASKS
from gdpo.lab.training.preflight import prepare, quiet

MINIMAL = "task: gsm8k\nmodel: smollm2-135m\ndata:\n  source: rows.jsonl\n"


@pytest.fixture
def load(saved):
    return lambda text=MINIMAL, *overrides: load_recipe(saved("recipe.yaml", text), overrides)


def weights_of(recipe):
    return [(reward.name, reward.weight) for reward in recipe.rewards]


def test_what_is_left_out_is_filled_in(load):
    recipe = load()
    assert recipe.name == "gsm8k-gdpo"
    assert recipe.advantage == "gdpo"
    assert weights_of(recipe) == [
        ("correctness", 1.0),
        ("integer", 1.0),
        ("format", 1.0),
    ]
    assert recipe.run_dir.as_posix() == "runs/gsm8k-gdpo"


def test_the_name_follows_the_estimator(load, own_rewards):
    assert load(MINIMAL, "advantage=grpo").name == "gsm8k-grpo"
    own = load(MINIMAL, "advantage=gdpo.advantages:grpo_no_std")
    assert own.name == "gsm8k-grpo_no_std"


def test_a_written_recipe_reads_back_the_same(load, saved):
    recipe = load(
        MINIMAL, "trainer={learning_rate: 1e-6, eval_strategy: no, optim: '1e-6', beta: 0}"
    )
    again = load_recipe(saved("written.yaml", recipe.to_yaml()))
    assert again.model_dump() == recipe.model_dump()
    assert recipe.trainer == {
        "learning_rate": 1e-6,
        "eval_strategy": "no",
        "optim": "1e-6",
        "beta": 0,
    }


def test_a_reward_may_be_its_name_alone(load, own_rewards):
    rewards = f"rewards: [{own_rewards}:vowels, {{name: format, weight: 2}}]\n"
    names = [(f"{own_rewards}:vowels", 1.0), ("format", 2.0)]
    assert weights_of(load(MINIMAL + rewards)) == names
    changed = load(MINIMAL + rewards, "rewards.0.weight=3").rewards
    assert [r.weight for r in changed] == [3.0, 2.0]
    given = load(MINIMAL, "rewards=[integer, format]", "rewards.1.weight=3")
    assert weights_of(given) == [("integer", 1.0), ("format", 3.0)]


TOKENS = "rewards=[format, {name: token_limit, options: {limit: 9}}]"


@pytest.mark.parametrize("name", ["1", "token_limit", "length"])
def test_an_override_finds_a_reward_by_number_by_its_name_in_the_recipe_and_in_logs(load, name):
    recipe = load(MINIMAL, TOKENS, f"rewards.{name}.weight=0.5")
    assert [reward.weight for reward in recipe.rewards] == [1.0, 0.5]


def test_an_override_by_name_writes_out_the_rewards_of_the_task(load):
    recipe = load(MINIMAL, "rewards.format.weight=2")
    assert weights_of(recipe) == [
        ("correctness", 1.0),
        ("integer", 1.0),
        ("format", 2.0),
    ]


def test_two_rewards_of_one_name_in_the_recipe_go_by_their_names_in_logs(load):
    two = ", ".join(f"{{name: token_limit, options: {{limit: 9, name: {n}}}}}" for n in "ab")
    assert [r.weight for r in load(MINIMAL, f"rewards=[{two}]", "rewards.b.weight=2").rewards] == [
        1.0,
        2.0,
    ]
    with config_error("'token_limit': Allowed: a, b"):
        load(MINIMAL, f"rewards=[{two}]", "rewards.token_limit.weight=2")


def test_a_mistake_by_name_shows_what_was_written(load):
    with config_error(r"^--set rewards\.length\.wieght=2: unknown key"):
        load(MINIMAL, TOKENS, "rewards.length.wieght=2")


def test_a_name_as_the_recipe_writes_it_calls_no_function_that_makes_a_reward(saved):
    path = saved("recipe.yaml", f"{MINIMAL}rewards: ['nowhere:made', format]\n")
    assert read_recipe(path, ["rewards.format.weight=2"]).rewards[1].weight == 2
    with config_error("'nowhere' cannot be imported"):
        read_recipe(path, ["rewards.length.weight=2"])


def test_a_recipe_that_is_not_there_is_reported_with_a_name_like_it_of_a_recipe(tmp_path):
    for name in ("tiny.yaml", "tinny.log", "small.yml", "mine/recipe.yaml", "min/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name, near in (
        ("tinny.yaml", ": did you mean 'tiny.yaml'?"),
        ("smal", ": did you mean 'small.yml'?"),
        ("mines", ": did you mean 'mine'?"),
        ("nope.yaml", "."),
    ):
        text = refusal(load_recipe, tmp_path / name)
        assert f"{tmp_path / name}{near}" in text
        assert "gdpo recipes ls" in text
    with config_error(r"has no recipe.yaml"):
        load_recipe(tmp_path)


@pytest.fixture
def broken(own_rewards, tmp_path):
    """A module of a user's own that imports what is not installed."""
    (tmp_path / "own" / "broken.py").write_text("\nimport nothere\n")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("modle=x", "'modle': did you mean 'model'"),
        ("data.sauce=x", "'data.sauce': did you mean 'source'"),
        ("rewards=[{name: format, wieght: 1}]", "'rewards.0.wieght': did you mean 'weight'"),
        ("task=gsm9k", "'gsm9k': did you mean 'gsm8k'"),
        ("task=7", "got 7"),
        ("advantage=gpdo2", "'gpdo2'"),
        ("advantage=GDPO", "'GDPO': did you mean 'gdpo'"),
        ("advantage=math:FREE", "'math' has no 'FREE': Allowed: acos"),
        ("advantage=math:FREE", "degrees, dist, erf, erfc, exp"),  # and not the number e
        ("advantage=nowhere:estimator", "'nowhere'"),
        ("advantage=broken:f", "named 'nothere' ("),
        ("advantage=broken:f", "broken.py, line 2)"),
        ("advantage=broken.sub:f", "'broken.sub'"),
        ("advantage=own_rewards.sub:f", "'own_rewards.sub'"),
        ("advantage=math:pi", "math:pi"),
        ("rewards=[{name: formt}]", "'formt': did you mean 'format'"),
        ("rewards=[{name: 'math:pi'}]", "gdpo.Reward"),
        ("rewards=[{name: 'own_rewards:no_reward'}]", "Wrap it: `Reward("),
        ("rewards=[{name: 'own_rewards:vowel'}]", "did you mean 'vowels'"),
        ("rewards=[{name: format}, {name: format}]", "repeated: format"),
        ("rewards=[{name: format, weight: .inf}]", "finite number"),
        ("rewards=[{name: format, weight: heavy}]", "got 'heavy'"),
        ("rewards=[{name: format, weight: 0}]", "every reward has weight 0"),
        ("max_steps=3", "'max_steps': did you mean 'trainer.max_steps'"),
        ("steps=3", "'steps': did you mean 'trainer.max_steps'"),
        ("source=x", "'source': did you mean 'data.source'"),
        ("data.max_steps=3", "'data.max_steps': Allowed: limit, max_prompt"),
        ("qqqq=3", "'qqqq': Allowed: advantage"),
        ("rewards=[1]", "keys name, weight"),
        ("rewards.formt.weight=2", "'formt': did you mean 'format'? Allowed: "),
        ("rewards.format.gate={on: integr, at_least: 1}", "'integr'"),
        ("rewards=[formt]", "'formt': did you mean 'format'"),
        ("rewards=format", "list"),
        ("data=rows.jsonl", "keys source"),
        ("data.limit=0", "got 0"),
        (f"data.limit={10**30}", "data.limit"),
        ("data.limit=true", "got True"),
        ("data.limit='5'", "got '5'"),
        ("name=../elsewhere", "'../elsewhere'"),
        ("name=", "got None"),
        ("trainer=fast", "mapping"),
        ("eval_data={source: rows.jsonl, weights_column: w}", "eval_data.weights_column"),
        ("advantage_options=fast", "mapping"),
        ("advantage_options={noise_flor: {format: 1}}", "'noise_flor': did you mean"),
        ("advantage_options={noise_floor: {formt: 1}}", "did you mean 'format'"),
        ("advantage_options={noise_floor: {format: -1}}", "noise_floor"),
        ("advantage_options={max_advantage: much}", "options of estimator 'gdpo'"),
        ("rewards=[{name: format, gate: {on: format, at_least: 1}}]", "gated on itself"),
        ("rewards=[{name: format, gate: {on: integer, at_least: 1}}]", "'integer'"),
        ("rewards=[{name: integer, gate: {on: format, at_least: 1}}]", "add it with weight 0"),
        (
            "rewards=[{name: format, gate: {on: 'own_rewards:vowels', at_least: 1}}, "
            "{name: 'own_rewards:vowels'}]",
            "Allowed: format, vowels",
        ),
        ("rewards=[{name: format, gate: {on: format}}]", "rewards.0.gate.at_least is missing"),
        ("rewards=[{name: format, gate: {onn: format}}]", "'rewards.0.gate.onn': did you mean"),
        ("rewards=[{name: format, gate: always}]", "keys on, at_least"),
        (
            "rewards=[{name: integer, gate: {on: format, at_least: 2}}, {name: format}]",
            "format ranges from 0 to 1",
        ),
        (
            "rewards=[{name: integer, gate: {on: format, at_least: 0}}, {name: format}]",
            "always open",
        ),
    ],
)
def test_a_mistake_names_its_place_and_what_is_allowed(
    load, own_rewards, broken, override, message
):
    text = refusal(load, MINIMAL, override)
    assert message in text
    where = text.partition(": ")[0]
    assert where.startswith("--set ") or "every reward" in message or "elsewhere" in message


def test_a_mistake_in_the_file_names_the_line(load):
    with config_error(r"recipe\.yaml:5: .*'rewrads'"):
        load(MINIMAL + "rewrads: []\n")
    with config_error(r"recipe\.yaml:7: .*'b'"):
        load(MINIMAL + "rewards:\n  - name: format\n  - name: b\n")


def test_all_mistakes_are_reported_at_once(load):
    lines = refusal(load, "task: gsm8k\ndata:\n  limit: many\n").splitlines()
    assert len(lines) == 3
    assert any("model is missing: a model on the Hub" in line for line in lines)
    assert any("data.source is missing" in line for line in lines)
    assert any("recipe.yaml:3: data.limit should be an integer" in line for line in lines)


def test_differences_are_by_key(load):
    old = load(MINIMAL, "trainer.beta=0")
    new = load(MINIMAL, "trainer.max_steps=5", "rewards=[{name: format}]")
    changed = differences(old, new)
    assert changed["trainer.beta"] == (0, None)
    assert changed["trainer.max_steps"] == (None, 5)
    assert changed["rewards.0.name"] == ("correctness", "format")
    assert changed["rewards.2.weight"] == (1.0, None)
    assert differences(old, old) == {}


def test_a_recipe_made_in_python_needs_no_file():
    recipe = Recipe(task="gsm8k", model="smollm2-135m", data=DataConfig(source="rows.jsonl"))
    assert recipe.name == "gsm8k-gdpo"
    assert recipe.place("model") == "the recipe"


def test_a_module_that_is_broken_gets_no_advice_about_the_path(load, broken):
    assert "Python path" not in refusal(load, MINIMAL, "advantage=broken:f")


def misspelt(rewards, weights):
    return rewrds.sum(-1)  # noqa: F821


def of_numpy(rewards, weights):
    return np.nansum(np.asarray(rewards) * np.asarray(weights), axis=-1)


def with_a_floor(rewards, weights, *, floor):
    assert rewards.shape[-1] == len(floor) == 2
    assert weights.tolist() == [1.0, 0.5]
    return (rewards.clamp(min=0.0) * weights).sum(-1)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("os:system", r"\(command\)"),
        (f"{__name__}:misspelt", "NameError"),
        (f"{__name__}:of_numpy", "Tensor"),
    ],
)
def test_an_estimator_of_ones_own_is_tried_when_the_recipe_is_read(load, own, message):
    with config_error(f"^--set advantage=.* estimator '{own}' .*{message}"):
        load(MINIMAL, f"advantage={own}")


def test_an_estimator_of_ones_own_is_tried_with_the_options_and_weights_of_the_recipe(load):
    options = "advantage_options={floor: {format: 0.1, correctness: 0.2}}"
    weights = "rewards=[correctness, {name: format, weight: 0.5}]"
    load(MINIMAL, f"advantage={__name__}:with_a_floor", options, weights)


PLAIN = """
def trl_style(prompts, completions, **columns):
    return [0.0] * len(completions)

def fails(**columns):
    return columns["scores"]
"""


@pytest.fixture
def plain(own_rewards, tmp_path):
    """A module with functions that are no rewards."""
    (tmp_path / "own" / "plain.py").write_text(PLAIN)


def with_reward(load, entry):
    return load(MINIMAL + f"rewards: [{entry}]\n")


def test_a_function_that_makes_a_reward_is_called_once_until_training_begins(
    recipe_file, own_rewards, tmp_path
):
    """It may load a tokenizer, or open a client; and gates go by what it made."""
    calls = tmp_path / "own" / "calls.txt"
    (tmp_path / "own" / "counted.py").write_text(
        "from pathlib import Path\n"
        "from gdpo import Reward\n"
        "def short():\n"
        f"    calls = Path({str(calls)!r})\n"
        "    calls.write_text(calls.read_text() + 'x')\n"
        "    return Reward('short', lambda tokens, reference: 1.0, low=0, high=1, of='tokens')\n"
    )
    calls.write_text("")
    counted = [
        "trainer.lr_scheduler_type=constant",
        f"rewards=[{{name: 'counted:short'}}, {{name: '{own_rewards}:vowels'}}]",
        "data.max_prompt_length=1000",
    ]
    resolved = resolve(read_recipe(recipe_file, counted))
    with quiet():
        prepare(resolved, rows=2)
    launch = plan_verl(resolved, Machines(1, 1))
    grid = make_grid(resolved, ["grpo", "gdpo"], [1, 2], tmp_path / "compare", reach=0.8)
    assert calls.read_text() == "x"
    assert {cell.resolved.rewards for cell in grid.cells} == {launch.resolved.rewards}


@pytest.mark.parametrize(
    ("entry", "name", "value"),
    [
        ("{name: token_limit, options: {limit: 5}}", "length", 0.0),
        ("{name: token_limit, options: {limit: 7, name: brief}}", "brief", 1.0),
        ("{name: 'own_rewards:short_or', options: {most: 5}}", "short", 0.0),
        ("{name: 'own_rewards:short_or'}", "short", 1.0),
    ],
)
def test_a_reward_may_be_made_by_a_function_with_options(load, own_rewards, entry, name, value):
    (reward,) = find_rewards(with_reward(load, entry), TASKS["gsm8k"])
    assert (reward.name, reward.function(7, {})) == (name, value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{name: token_limit}", r"recipe.yaml:5: .*'limit'"),
        ("{name: token_limit, options: {limits: 5}}", r"token_limit\(limit: int.*'limit'"),
        ("{name: token_limit, options: {limit: 0}}", "recipe.yaml:5: .* at least 1, got 0"),
        ("{name: correctness, options: {limit: 1}}", "takes no options"),
        ("{name: 'math:pi'}", r"float.*gdpo.Reward"),
        ("{name: 'math:gcd'}", r"int.*gdpo.Reward"),
        ("{name: 'own_rewards:no_reward'}", r"'own_rewards:no_reward'.* Wrap it"),
        ("{name: 'plain:trl_style'}", r"'plain:trl_style'.* Wrap it"),
        ("{name: 'plain:fails'}", r"KeyError: 'scores'.*plain function"),
        ("{name: token_limt}", "did you mean 'token_limit'"),
        ("{name: corectness}", "did you mean 'correctness'"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_place(load, plain, entry, message):
    with config_error(message):
        with_reward(load, entry)


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("{worker: 2}", "recipe.yaml:5: .*'worker': did you mean 'workers'"),
        ("{workers: 0}", "workers .*got 0"),
        ("{retries: true}", "retries .*got True"),
        ("{on_error: mising}", "on_error 'mising'.* did you mean 'missing'"),
        ("{worker_memory_gb: '8'}", "worker_memory_gb .*got '8'"),
    ],
)
def test_wrong_options_of_the_scorer_are_refused(load, scorer, message):
    with config_error(message):
        load(MINIMAL + f"scorer: {scorer}\n")
