"""What left in this version is told from a typing error, wherever its name is typed."""

import importlib
import json

import pytest
from tests.refusals import config_error, refusal

import gdpo
from gdpo._left import LEFT, MOVED
from gdpo._naming import did_you_mean
from gdpo.advantages import AdvantageRule
from gdpo.lab.recipes.read import read_recipe

IMPORTS = [name for name in LEFT if name.startswith("gdpo.")]
VERBS = [name for name in LEFT if name.startswith("gdpo ")]
OPTIONS = [name for name in LEFT if " --" in name]
GO_ON = ("json", "no-report")
KEYS = sorted({*LEFT} - {*IMPORTS, *VERBS, *OPTIONS})


@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_says_what_replaces_it(name):
    module, _, attribute = name.rpartition(".")
    with pytest.raises(ImportError) as raised:
        exec(f"from {module} import {attribute}")
    assert str(raised.value) == f"{name} was removed: {LEFT[name]}"
    with pytest.raises(AttributeError, match="has no attribute 'never_there'"):
        importlib.import_module(module).never_there  # noqa: B018


@pytest.mark.parametrize("name", MOVED)
def test_the_import_of_a_module_says_what_replaces_it(name):
    room, _, module = name.rpartition(".")
    for statement in (f"import {name}", f"from {room} import {module}", f"from {name} import x"):
        with pytest.raises(ModuleNotFoundError) as raised:
            exec(statement)
        assert str(raised.value) == f"{name} was removed: {MOVED[name]}"


def test_the_names_of_removed_modules_are_not_there():
    assert not hasattr(gdpo, "tasks")
    with pytest.raises(ModuleNotFoundError, match="never_there"):
        importlib.import_module("gdpo.never_there")


@pytest.fixture
def refused(gdpo_says):
    """Run a command that ends with code 2, and return what it says."""

    def said(*arguments):
        code, _, err = gdpo_says(*arguments)
        assert code == 2
        return " ".join(err.replace("│", " ").split())

    return said


@pytest.mark.parametrize("name", [o for o in OPTIONS if o.split("--")[1] not in GO_ON])
def test_an_option_says_what_replaces_it(name, refused):
    verb, option = name.split()
    needed = ("--benchmarks", "gsm8k") if verb == "evaluate" else ()
    said = refused(verb, "x", *needed, option)
    assert f"The option {option} was removed: {LEFT[name]}." in said


@pytest.mark.parametrize("name", VERBS)
def test_a_command_says_what_replaces_it(name, refused):
    verb = name.split()[1]
    assert f"The command {verb} was removed: {LEFT[name]}." in refused(verb, "x")


@pytest.mark.parametrize("verb", ["report", "train"])
def test_a_command_that_never_had_an_option_names_no_option_of_another(verb, refused):
    said = refused(verb, "x", "--format", "png")
    assert "Unknown option: --format." in said
    assert "--columns" not in said


@pytest.mark.parametrize("option", [("--rewards", "influence"), ("--weights", "influence=1")])
def test_a_reward_may_have_the_name_of_what_was_removed(option, refused):
    assert "removed" not in refused("analyze", "--example", *option)


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_key_or_name_says_what_replaces_it(key, saved):
    said = did_you_mean(key, ["other"], is_setting=True)
    assert said == f"it was removed: {LEFT[key]}. Allowed: other"
    with config_error(LEFT[key]):
        AdvantageRule("gdpo", ["a"], {key: 1})
    recipe = saved("recipe.yaml", f"task: gsm8k\n{key}: 1\n")
    said = refusal(read_recipe, recipe)
    assert f"recipe.yaml:2: unknown key '{key}': it was removed: {LEFT[key]}." in said


def test_a_recipe_that_the_last_version_saved_is_read(saved):
    """It holds every key, also those that nobody had set."""
    recipe = saved(
        "recipe.yaml",
        "task: gsm8k\nmodel: m\ndata: {source: x.jsonl, near_duplicates: null}\ninfluence: null\n",
    )
    assert read_recipe(recipe, left_out=(left_out := set())).data.source == "x.jsonl"
    assert not left_out


def test_scripts_with_the_last_version_s_output_options_go_on(gdpo_says):
    code, out, err = gdpo_says("analyze", "--example", "--no-report", "--json")
    assert code == 0
    assert json.loads(out)["runs"]
    assert [line for line in err.splitlines() if line.startswith("gdpo: ")] == [
        "gdpo: the option --json was removed: use --output json",
        "gdpo: the option --no-report was removed: use --output none",
    ]


@pytest.mark.parametrize("output", [("--output", "json"), ("--output=json",)])
def test_a_script_that_was_changed_in_part_goes_on(output, gdpo_says):
    code, out, _ = gdpo_says("analyze", "--example", *output, "--no-report")
    assert code == 0
    assert json.loads(out)["runs"]


def test_the_page_and_its_absence_cannot_both_be_asked_for(refused):
    said = refused("analyze", "--example", "--json", "--output", "page.html")
    assert "--json cannot be combined with --output: remove one of the two" in said


def test_comparing_the_data_with_benchmarks_says_what_replaces_it(refused):
    said = refused("check", "recipe.yaml", "--benchmarks", "gsm8k")
    assert "--benchmarks with a recipe was removed: filter the rows" in said
