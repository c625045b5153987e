"""Where the Hub cannot be reached, one line says so, at once and without the Hub's own retries."""

import json

import pytest
from tests.checkout import python

MODEL = "ann/tiny"
DATA = "ann/rows"


@pytest.fixture
def gdpo_without_hub(tmp_path):
    """Run a command of gdpo in a process with an empty cache and a Hub that nobody answers."""
    recipe = {"task": "gsm8k", "model": MODEL, "data": {"source": DATA}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))

    def run(*words):
        return python(
            "-m",
            "gdpo",
            *words,
            cwd=tmp_path,
            env={
                "HF_HUB_OFFLINE": "0",
                "HF_ENDPOINT": "http://127.0.0.1:9",
                "HF_HOME": str(tmp_path / "hub"),
                "NO_PROXY": "*",
            },
            timeout=300,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("check recipe.yaml", [MODEL, DATA]),
        ("train recipe.yaml", [MODEL]),
        ("compare recipe.yaml --seeds 1 --output c", [MODEL]),
        (f"evaluate {MODEL} --benchmarks gsm8k", [MODEL]),
        ("evaluate gold --benchmarks gsm8k", ["openai/gsm8k"]),
    ],
)
def test_an_unreachable_hub_is_reported_once_for_each_name(gdpo_without_hub, command, missing):
    done = gdpo_without_hub(*command.split())
    printed = done.stdout + done.stderr
    assert done.returncode in (1, 2), printed
    for noise in ("Retrying", "thrown while requesting", "Traceback"):
        assert noise not in printed
    for name in missing:
        lines = [line for line in printed.splitlines() if f"'{name}'" in line and "Hub" in line]
        assert len(lines) == 1, printed
