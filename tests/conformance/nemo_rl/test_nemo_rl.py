"""Tests NeMo-RL's own code paths with gdpo, if NeMo-RL's source is available.

Each test reads the output of one process of `paths.py`, which describes what it needs.
"""

import os
import sys
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import pytest
from tests.conformance.__main__ import run
from tests.conformance.nemo_rl.story_rewards import rewards
from tests.conformance.others.known_rollouts import STEPS, known
from tests.conformance.others.reading_back import assert_of_the_formula

from gdpo import gdpo
from gdpo.rollouts.readers import read_rollout_files

needed = [name for name in ("ray", "tensordict", "mlflow") if find_spec(name) is None]
needed += [] if os.environ.get("NEMO_RL_SOURCE") else ["NEMO_RL_SOURCE, a checkout of NeMo-RL"]
pytestmark = pytest.mark.skipif(bool(needed), reason=f"not installed: {', '.join(needed)}")

PATHS = ["grpo", "grpo_sync", "grpo_train, a whole step"]


@lru_cache
def printed_by(script, *arguments):
    return run(sys.executable, [f"nemo_rl/{script}", *arguments], {"NEMO_RL_WITHOUT_GDPO": ""})


@pytest.mark.parametrize("path", PATHS)
def test_advantages_on_nemo_rls_own_path_are_those_of_the_formula(path):
    assert_of_the_formula(printed_by("paths.py"), path)


def test_its_log_of_whole_steps_is_read_as_it_was_trained(tmp_path):
    printed_by("dump.py", str(tmp_path))
    reading = read_rollout_files(tmp_path)
    for place, table in enumerate(reading):
        texts = [rollout.completion for rollout in known(STEPS[place])]
        values = np.array([[reward.function(text, {}) for reward in rewards] for text in texts])
        np.testing.assert_allclose(table.total, values.sum(-1), atol=1e-6)
        np.testing.assert_allclose(
            table.advantages, gdpo(values.reshape(3, 4, 2), [1.0, 1.0]).ravel(), atol=1e-6
        )
        assert table.num_tokens.tolist() == list(map(len, texts))
    assert (reading.report.read, reading.report.skipped) == (24, 0)
    assert reading.report.group_sizes == {4: 6}


def test_nemo_rl_takes_our_fields_refuses_what_is_wrong_and_scores_with_the_recipes_environment():
    printed_by("configuration.py")
