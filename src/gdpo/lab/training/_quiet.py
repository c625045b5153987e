"""Silences the libraries that gdpo uses, except for errors and download progress."""

import logging
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager

_LIBRARIES = r"(trl|transformers|torch|accelerate|datasets|huggingface_hub)\b"


@contextmanager
def quiet() -> Generator[None]:
    """Make transformers, TRL, datasets and tokenizers report only errors, and hide progress bars.

    Download progress bars stay visible. The settings are restored at the end of the `with` block.
    Environment variables that the user has set are kept.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", category=UserWarning, module=_LIBRARIES)
        with (
            _errors_only("trl", "accelerate", "torch.distributed", "huggingface_hub"),
            _transformers_quiet(),
        ):
            yield


@contextmanager
def _errors_only(*names: str) -> Generator[None]:
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _transformers_quiet() -> Generator[None]:
    try:
        from transformers.utils import logging as hf
    except ImportError:  # not installed: the code that needs it reports that
        yield
        return
    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    # Disabling transformers' bars also hides those of downloads.
    if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        from huggingface_hub.utils import enable_progress_bars

        enable_progress_bars()
    try:
        yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()
