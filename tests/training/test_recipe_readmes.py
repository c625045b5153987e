"""Every `gdpo` command in the READMEs of the recipes is one: options, keys, rewards and names."""

import re
import shlex

import pytest
from cyclopts import CycloptsError
from tests.environments import ROOT

from gdpo.cli import main
from gdpo.cli._app import app
from gdpo.errors import ConfigError
from gdpo.lab.cli._evaluating import files_of, the_benchmarks
from gdpo.lab.evaluation.responders import Sampling, check_sampling
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.recipes.trainer_fields import build_config
from gdpo.lab.training.preflight import quiet

READMES = sorted((ROOT / "recipes").glob("**/README.md"))

FENCE = re.compile(r"^```(?:bash|sh|console)?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands_in(text, recipe):
    """What follows `gdpo` in the fenced blocks; a line of `--set` alone is one of `gdpo train`."""
    found = []
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.replace("recipes/NAME", "recipes/gsm8k").replace("…", "1")
            words = [] if line.startswith(("python ", "pip ")) else shlex.split(line, comments=True)
            if words[:1] == ["--set"]:
                words = ["gdpo", "train", recipe, *words]
            if "gdpo" in words:
                found.append(words[words.index("gdpo") + 1 :])
    return found


COMMANDS = [
    pytest.param(words, id=" ".join(words))
    for file in READMES
    for words in commands_in(file.read_text(), f"recipes/{file.parent.name}")
]


@pytest.fixture
def beside_the_recipes(tmp_path, monkeypatch):
    """A folder that holds the recipes and no runs."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def try_out(words):
    """Do what a command does as far as no model, no data and no network are needed."""
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    given = bound.arguments
    if words[0] in ("compare", "launch"):
        places = 1 if words[0] == "compare" else 2
        dry = list(words)
        dry[places:places] = ["--dry-run"] * ("--dry-run" not in words)
        with pytest.raises(SystemExit) as leaving:
            main(dry)
        assert not leaving.value.code, dry
    elif words[0] in ("train", "check") and "recipe" in given:
        changes = [*(given.get("set") or ()), "trainer.use_vllm=false"]
        with quiet():
            build_config(resolve(load_recipe(given["recipe"], changes)))
    elif words[0] == "evaluate":
        the_benchmarks(given["benchmarks"], files_of(given.get("data") or ()))
        check_sampling(Sampling(given.get("samples", 1), given.get("temperature", 0.0)))


def test_the_readmes_have_commands_for_every_recipe():
    named = {words[1] for [words] in (param.values for param in COMMANDS)}
    assert {f"recipes/{file.parent.name}" for file in READMES[1:]} <= named


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_a_readme_is_one(words, beside_the_recipes):
    try_out(words)
    assert [path.name for path in beside_the_recipes.iterdir()] == ["recipes"]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("gdpo train recipes/gsm8k --sett model=x", CycloptsError),
        ("gdpo train recipes/gsm8k --set trainer.max_step=3", ConfigError),
        ("gdpo train recipes/gsm8k --set rewards.formt.weight=1", ConfigError),
        ("--set rewards.format.wieght=1", ConfigError),
        ("accelerate launch --num_processes 8 -m gdpo train recipes/gsm8q", ConfigError),
        ("gdpo compare recipes/gsm8k --vari rewards.format.weight=1,2", CycloptsError),
        ("gdpo compare recipes/gsm8k --vary rewards.formt.weight=1,2", AssertionError),
        ("gdpo compare recipes/gsm8k --estimators gpdo", AssertionError),
        ("gdpo launch verl recipes/gsm8k --set rewards.formt.weight=1", AssertionError),
        ("gdpo evaluate runs/a --benchmarks math501", ConfigError),
        ("gdpo evaluate runs/a --benchmarks math500 --samples 16", ConfigError),
        ("gdpo check recipes/gsm8k --set advantage=gpdo", ConfigError),
    ],
)
@pytest.mark.usefixtures("beside_the_recipes")
def test_a_misspelt_command_would_be_found(command, wrong):
    [words] = commands_in(f"```\n{command}\n```", "recipes/gsm8k")
    with pytest.raises(wrong):
        try_out(words)
