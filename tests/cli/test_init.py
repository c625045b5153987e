"""`gdpo init`: what it writes is complete, plain and trains; what exists is left alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkout import python
from tests.refusals import config_error

from gdpo.errors import MissingExtraError
from gdpo.lab.recipes import starter
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.directory import RunDirectory, read_metrics
from gdpo.rollouts import read_rollouts, rollout_file
from gdpo.testing import check_reward


def entered(folder, monkeypatch):
    """Make the folder of a project the current one. Return it."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for module in ("my_task", "my_rewards"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of `gdpo init` without its models, as the current folder."""
    monkeypatch.setattr(starter, "_make_models", made)
    starter.write_project(tmp_path / "mine")
    return entered(tmp_path / "mine", monkeypatch)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A project of `gdpo init`, with the models of two seeds."""
    folder = tmp_path_factory.mktemp("init") / "mine"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(starter, "SEEDS", 2)
        starter.write_project(folder)
    return folder


@pytest.fixture
def trained(written, tmp_path, monkeypatch):
    """A copy of a project of `gdpo init`, as the current folder."""
    shutil.copytree(written, tmp_path / "mine")
    return entered(tmp_path / "mine", monkeypatch)


def made(folder):
    """Stand in for the models of `gdpo init`, which take half a minute."""
    (folder / starter.MODELS).mkdir()


def test_every_file_is_written_and_listed(tmp_path, printed, monkeypatch):
    monkeypatch.setattr(starter, "_make_models", made)
    folder = tmp_path / "new" / "folder"
    out = printed("init", folder)
    commands = ("gdpo train recipe.yaml", "gdpo compare recipe.yaml")
    for word in (*starter.FILES, *commands, "for each of 5 seeds"):
        assert word in out
    assert {path.name for path in folder.iterdir()} == set(starter.FILES)


@pytest.mark.slow
def test_each_seed_of_a_comparison_has_its_own_model(trained):
    recipes = (load_recipe("recipe.yaml", [f"trainer.seed={seed}"]) for seed in (1, 2))
    files = [trained / recipe.initial_model / "model.safetensors" for recipe in recipes]
    one, other = (file.read_bytes() for file in files)
    assert one != other
    assert len(one) == len(other)


def test_the_gate_in_a_comment_can_be_switched_on(project):
    text = (project / "recipe.yaml").read_text()
    (project / "gated.yaml").write_text(text.replace("    # gate:", "    gate:"))
    gate = load_recipe("gated.yaml").rewards[1].gate
    assert gate is not None
    assert (gate.on, gate.at_least) == ("correctness", 3)


@pytest.mark.parametrize("response", ["1,1", "0x1", "01", "1 or 0", ""])
def test_only_a_response_with_one_number_is_right(project, response):
    import my_task

    assert my_task.score_correctness(response, {"answer": "1"}) == -3.0


def test_the_rewards_pass_their_own_check(project):
    import my_rewards
    import my_task

    check_reward(my_task.correctness, texts=50)
    check_reward(my_rewards.brevity, texts=50)


def test_the_files_pass_ruff(project):
    files = ["my_task.py", "my_rewards.py", "warm_start.py"]
    width = ["--isolated", "--line-length", "100"]
    for command in (["check", "--select", "E,F,I,B,UP", *width], ["format", "--check", *width]):
        done = python("-m", "ruff", *command, *files)
        assert done.returncode == 0, done.stdout + done.stderr


def assert_only_mine(folder, name):
    """The folder has one file, with the text that it had."""
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("name", list(starter.FILES))
def test_an_existing_file_is_left_alone_and_nothing_is_written(tmp_path, saved, mistake, name):
    saved(name, "mine")
    assert name in mistake("init", tmp_path)
    assert_only_mine(tmp_path, name)


def test_a_file_where_the_folder_should_be_is_named(tmp_path, mistake):
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in mistake("init", tmp_path / "file")


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fails(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(starter, "_make_models", fails)
    with config_error("No space left"):
        starter.write_project(tmp_path)
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_be_made_are_reported_and_leave_nothing(tmp_path, saved, monkeypatch):
    saved("torch.py", "raise ImportError('built for another machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with config_error(r"new.*ImportError: built for another machine"):
        starter.write_project(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", list(starter.FILES))
def test_a_file_that_appears_meanwhile_is_kept(tmp_path, saved, monkeypatch, name):
    def slow(folder):
        made(folder)
        saved(name, "mine")

    monkeypatch.setattr(starter, "_make_models", slow)
    with config_error(name):
        starter.write_project(tmp_path)
    assert_only_mine(tmp_path, name)


@pytest.mark.parametrize("name", ["my proj; touch pwned", "-x", "it's $HOME", "plain"])
def test_the_next_command_reaches_the_folder_in_a_shell(here, printed, monkeypatch, name):
    monkeypatch.setattr(starter, "_make_models", made)
    command = printed("init", "--", name).partition("Next: ")[2].partition(" && gdpo")[0]
    shell = subprocess.run(
        ["sh", "-c", f"{command} && pwd"], cwd=here, capture_output=True, text=True
    )
    assert shell.stdout.rstrip("\n") == str(here / name)
    assert [path.name for path in here.iterdir()] == [name]


def test_without_torch_the_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="torch"):
        starter.write_project(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_project_is_checked_and_trains(trained, printed):
    out = printed("check", "recipe.yaml")
    doubtful = [line for line in out.splitlines() if line.startswith("!")]
    assert not doubtful, out
    assert "- priority: correctness does not always win" in out
    printed("train", "recipe.yaml")
    rows = read_metrics(RunDirectory(trained / "runs" / "first-run"))
    for reward, risen in (("correctness", 0.5), ("brevity", 0.5)):
        means = [row[f"rewards/{reward}/mean"] for row in rows]
        assert sum(means[-10:]) / 10 > sum(means[:10]) / 10 + risen
    shares = [row["rewards/brevity/influence_share"] for row in rows]
    assert 0.2 < sum(shares[:20]) / 20 < 0.7, "while it is learned; with grpo about 0.01"


@pytest.mark.slow
def test_runs_of_a_comparison_with_the_same_seed_start_from_the_same_model(trained, printed):
    small = ("trainer.max_steps=2", "batch.prompts=2", "batch.samples=4", "batch.micro_batch=8")
    sets = [text for value in small for text in ("--set", value)]
    out = printed("compare", "recipe.yaml", "--seeds", "2", "--output", "c", *sets)
    shown, _, _ = out.partition("finished at step")
    assert "cannot show a difference" in shown, "it is printed before anything is trained"
    assert "--seeds 5" in shown
    first = {
        (label, seed): [
            (rollout.prompt, rollout.completion)
            for rollout in read_rollouts(rollout_file(Path(f"c/{label}-seed-{seed}/rollouts"), 1))
        ]
        for label in ("grpo", "gdpo")
        for seed in (1, 2)
    }
    assert first["grpo", 1] == first["gdpo", 1]
    assert first["grpo", 2] == first["gdpo", 2]
    assert first["grpo", 1] != first["grpo", 2]
    for seed in (1, 2):
        text = Path(f"c/gdpo-seed-{seed}/README.md").read_text()
        assert f"tiny_models/{seed} trained" in text
