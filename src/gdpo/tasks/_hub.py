"""Asks once whether the Hub can be reached, because `datasets` would ask for half a minute."""

import re
from collections.abc import Generator
from contextlib import contextmanager

_TIMEOUT_S = 10
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?")


def why_unreachable(dataset: str) -> Exception | None:
    """What kept the Hub from answering a question about a dataset; None: it answered."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if not _DATASET.fullmatch(dataset):
        return None
    url = hf_hub_url(dataset, "README.md", repo_type="dataset")
    try:
        get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    except HfHubHTTPError:  # an answer, too: there is no such file, or nobody is logged in
        return None
    except Exception as error:  # noqa: BLE001 (libraries of the network, each with errors of its own)
        return error
    return None


@contextmanager
def from_cache_alone() -> Generator[None]:
    """Let `datasets` take what it has kept, without tries to reach the Hub and a word on each."""
    from datasets import config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
