"""The command line, run in this process."""

import json
import re
from functools import partial

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to be in, beside those of the runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    """The folder of a run, which is not there yet."""
    return tmp_path / "run"


@pytest.fixture
def printed(gdpo_says):
    """Run a command, which ends well without a message on stderr. Return what it prints."""

    def run(*arguments):
        code, out, err = gdpo_says(*arguments)
        assert (code, re.sub("^reading .*\n", "", err)) == (0, "")
        return out

    return run


@pytest.fixture
def mistake(gdpo_says):
    """Run a command, which ends with code 2. Return why, on one line."""

    def run(*arguments):
        code, _, err = gdpo_says(*arguments)
        assert code == 2
        return " ".join(err.split())

    return run


@pytest.fixture
def analyze(gdpo_says):
    return partial(gdpo_says, "analyze")


@pytest.fixture
def shown(printed):
    """Run `gdpo analyze`, which ends well without a message on stderr. Return what it prints."""
    return partial(printed, "analyze")


@pytest.fixture
def summary(shown):
    """Run `gdpo analyze` without a page, which ends well. Return what it prints."""
    return partial(shown, "--output", "none")


@pytest.fixture
def machine(analyze):
    """Run `gdpo analyze` for a machine, which ends well. Return what it finds."""

    def run(*arguments):
        code, out, err = analyze(*arguments, "--output", "json")
        assert code == 0, err
        return json.loads(out, parse_constant=pytest.fail)

    return run


@pytest.fixture
def refused(mistake):
    """Run `gdpo analyze`, which ends with code 2. Return why, on one line."""
    return partial(mistake, "analyze")
