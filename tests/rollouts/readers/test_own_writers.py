"""What frameworks' own writers wrote of known rollouts is read with the numbers put into it.

The files in `golden/<framework>_<version>` are by `tests/conformance/others/writers.py`; NeMo-RL's
are eight lines of the log of a step that `tests/conformance/nemo_rl/dump.py` made.
"""

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.others.reading_back import TOLD, differences

from gdpo.rewards.text import completion_text
from gdpo.rollouts.readers import read_rollout_files, read_texts

GOLDEN = Path(__file__).parent / "golden"


def folder_of(name):
    (folder,) = GOLDEN.glob(f"{name}_*/")
    return folder


@pytest.mark.parametrize(
    "name", ["tinker", "art", "slime", "open-instruct", "skyrl", "prime-rl platform"]
)
def test_a_dump_by_its_own_writer_is_read_as_it_was_put_in(name):
    if name == "slime":
        pytest.importorskip("torch")
    assert differences(folder_of(name.replace(" ", "-")), TOLD[name]) == []


def test_a_log_by_nemo_rls_own_logger_is_read_as_it_was_trained():
    (table,) = read_rollout_files(folder_of("nemo-rl"))
    assert table.names == ("rewards",)
    totals = [0.25, 0.025, -0.825, 0.0, 0.15, -0.725, -0.725, -0.725]
    np.testing.assert_allclose(table.rewards[:, 0], totals, rtol=1e-6)
    assert table.steps.tolist() == [2] * 8
    assert table.groups.tolist() == [table.groups[0]] * 4 + [table.groups[4]] * 4
    assert table.groups[0] != table.groups[4]
    assert table.num_tokens.tolist() == [30, 39, 73, 81, 34, 69, 69, 69]
    trained = [0.648588, 0.204832, -1.471578, 0.618159, 1.82616, -0.60872, -0.60872, -0.60872]
    np.testing.assert_allclose(table.advantages, trained, rtol=1e-5)
    (file,) = table.files
    for text, length in zip(read_texts(file, range(8)), table.num_tokens, strict=True):
        assert len(completion_text(text.completion)) == length  # a token is a character
