"""Tests that the memory of bfloat16 training on a CPU does not grow."""

import json
import os
import sys

import pytest
from tests.checkout import environment, python
from tests.integrations.variants import make

pytestmark = pytest.mark.slow

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


@pytest.fixture(autouse=True)
def _environment_of_its_own(monkeypatch):
    for name in CACHES:
        monkeypatch.setenv(name, "")  # so that what the trainer sets does not outlive the test
        monkeypatch.delenv(name)


def bounds(trainer):
    callbacks = [type(each).__name__ for each in trainer.callback_handler.callbacks]
    return [os.environ.get(name) for name in CACHES], "_GiveBack" in callbacks


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads glibc's heap")
def test_in_bfloat16_neither_new_shapes_nor_freed_memory_pile_up(place):
    script = "tests.integrations.training_in_bfloat16"
    variables = environment(OMP_NUM_THREADS="1")
    done = python("-m", script, *place, env=variables, check=True)
    grown = json.loads(done.stdout.splitlines()[-1])
    assert grown["in_use_by_shapes"] < 50  # MB; 112 when every shape's kernels are kept
    assert grown["resident_after_a_step"] < 130  # MB; 224 when glibc keeps what a reward freed


def test_float32_is_left_alone(place):
    assert bounds(make("ours", *place)) == ([None, None], False)


def test_sizes_that_the_user_has_set_stay(place, monkeypatch):
    monkeypatch.setenv(CACHES[1], "1024")
    sizes, gives_back = bounds(make("ours", *place, bf16=True))
    assert sizes[1] == "1024"
    assert sizes[0] is not None
    assert gives_back == sys.platform.startswith("linux")
