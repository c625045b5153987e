"""Tests frameworks' own code paths with our estimators, for the frameworks that are installed.

Each test reads the output of one process of a script in this folder. `requirements-<name>.txt`
lists what its environment needs.
"""

import sys
from functools import lru_cache
from importlib.util import find_spec

import pytest
from tests.conformance.__main__ import patched, run

SCRIPTS = {
    "ms_swift": ("swift", ["ms_swift_paths.py"]),
    "tunix": ("tunix", ["tunix_paths.py"]),
    "rllm": ("rllm", ["rllm_paths.py"]),
    "slime": ("slime", ["slime_paths.py", "slime"]),
    "miles": ("miles", ["slime_paths.py", "miles"]),
    "prime_rl": ("prime_rl", ["prime_rl_paths.py"]),
}
PATHS = [
    ("ms_swift", "groups"),
    ("ms_swift", "request-aware"),
    ("tunix", "GRPOLearner"),
    ("tunix", "GRPOLearner, one group at a time"),
    ("rllm", "traj_group_adv_estimator_map"),
    ("rllm", "adv_estimator: gdpo"),
    ("rllm", "async_training, one group at a time"),
    ("prime_rl", "TrainSink, one group at a time"),
    ("slime", "samples"),
    ("slime", "several samples of one rollout"),
    ("miles", "samples"),
    ("miles", "several samples of one rollout"),
]


@lru_cache
def printed_by(framework, *options):
    package, (script, *arguments) = SCRIPTS[framework]
    if find_spec(package) is None:
        pytest.skip(f"not installed: {package}")
    return run(sys.executable, [f"others/{script}", *arguments, *options], {})


def lines(framework, path, *options):
    found = [line for line in printed_by(framework, *options) if line["path"] == path]
    assert [line["rewards"] for line in found] == [2, 3, 5]
    return found


@pytest.mark.parametrize(("framework", "path"), PATHS)
def test_advantages_on_a_frameworks_own_path_are_those_of_the_formula(framework, path):
    for line in lines(framework, path):
        assert line["difference"] < 1e-5
        assert line["with_missing"] < 1e-5


@pytest.mark.parametrize(("framework", "path"), PATHS)
def test_a_batch_without_any_signal_gives_exactly_0(framework, path):
    for line in lines(framework, path):
        assert line["no_signal"] == 0


@pytest.mark.parametrize(("framework", "path"), PATHS)
def test_without_us_the_same_path_gives_something_else(framework, path):
    for line in lines(framework, path, "--own"):
        assert line["difference"] > 0.1 or line["no_signal"] > 1


def test_where_ms_swift_would_not_compute_gdpo_it_is_refused():
    for line in lines("ms_swift", "reinforce_plus_plus"):
        assert line["difference"].startswith("ConfigError: --advantage_estimator")


def test_a_whole_run_of_ms_swift_trains_on_the_advantages_of_the_formula(tmp_path):
    if find_spec("swift") is None:
        pytest.skip("not installed: swift")
    command = ["others/ms_swift_training.py", str(tmp_path / "run")]
    _, logged, differences = run(sys.executable, command, {})
    assert [step["rewards/letters/mean"] > 0 for step in logged["logged"][:6]] == [True] * 6
    assert len(differences["differences"]) >= 6
    assert max(differences["differences"]) < 1e-5


@pytest.mark.slow
def test_the_patch_for_trl_makes_its_failing_test_pass():
    assert patched("trl") == ["fails", "passes"]
