"""Asks once whether the Hub can be reached, because its libraries would ask for half a minute."""

import re
from collections.abc import Generator
from contextlib import contextmanager

_TIMEOUT_S = 10
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def why_unreachable(name: str, file: str, *, kind: str) -> Exception | None:
    """What kept the Hub from answering a question; None: it answered.

    Args:
        name: A repository's. Of what can be none, nothing is asked.
        file: One that it may hold.
        kind: `model` or `dataset`.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if not _NAME.fullmatch(name):
        return None
    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind), timeout=_TIMEOUT_S)
    except HfHubHTTPError:  # an answer, too: there is no such file, or nobody is logged in
        return None
    except Exception as error:  # noqa: BLE001 (libraries of the network, each with errors of its own)
        return error
    return None


@contextmanager
def from_cache_alone() -> Generator[None]:
    """Let the libraries of the Hub take what is kept here, without tries to reach it."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
