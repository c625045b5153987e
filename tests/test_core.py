"""The core works where nothing but its own dependencies is installed."""

import os
import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.checkout import python
from tests.environments import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def needed(requirements):
    """Return the distributions that these requirements install, without extras."""
    found, waiting = {}, [each for each in requirements if "extra ==" not in each]
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop(), maxsplit=1)[0].lower()
        if name not in found:
            found[name] = distribution(name)
            waiting += [
                each
                for each in found[name].requires or ()
                if not any(no in each.partition(";")[2] for no in ("extra ==", "python_version <"))
            ]
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a function that runs Python with the core's dependencies only."""
    site = tmp_path_factory.mktemp("site")
    for each in needed(PROJECT["dependencies"]).values():
        tops = {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "")}
        for top in tops - {"__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(each.locate_file(top)).resolve())
    path = os.pathsep.join([str(ROOT / "src"), str(site)])

    def run(*arguments):
        variables = {"PYTHONPATH": path, "COLUMNS": "80"}
        return python("-S", *arguments, cwd=site.parent, env=variables)

    return run


def test_it_analyzes_and_computes_advantages(core):
    computed = (
        "import numpy as np, gdpo; print(gdpo.gdpo(np.array([[[0.0], [1.0]]]), [1]).tolist())"
    )
    analyzed = "from gdpo.cli import main; main(['analyze', '--example'])"
    done = core("-c", f"{computed}; {analyzed}")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "[[-0.7071067811865475, 0.7071067811865475]]"
    assert last.startswith("verdict: ")


def test_it_lacks_what_only_the_lab_needs(core):
    names = "pydantic", "yaml", "cloudpickle", "jaxtyping", "torch"
    code = f"from importlib.util import find_spec; print(*map(find_spec, {names}))"
    assert core("-c", code).stdout.split() == ["None"] * len(names)
    assert "MissingExtraError" in core("-c", "import gdpo.lab").stderr


def test_the_help_has_the_verbs_that_work_and_says_how_to_get_the_others(core):
    text = core("-m", "gdpo", "--help").stdout
    assert re.findall(r"^│ (\w+)", text, re.MULTILINE) == ["analyze"]
    assert "pip install '.[lab]'" in text
    unknown = core("-m", "gdpo", "train", "recipe.yaml")
    assert unknown.returncode != 0
    assert "pip install '.[lab]'" in unknown.stdout + unknown.stderr
    assert 'Did you mean "analyze"?' in core("-m", "gdpo", "analyse").stderr


def test_at_most_six_packages_are_required():
    assert len(PROJECT["dependencies"]) <= 6
