"""Tests what happens when TRL's private parts differ, and the check with a made-up batch."""

import copy
import inspect
import random
import re
import sys

import numpy as np
import pytest
import torch
from tests.checkout import python
from tests.conformance.__main__ import FRAMEWORKS
from tests.environments import ROOT
from tests.integrations.variants import dataset, trainer_of
from tests.refusals import config_error, refusal
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, _adapter
from gdpo.integrations.trl._packing import packer_of
from gdpo.integrations.trl._probe import rule_of
from gdpo.integrations.trl.generation import fast_rollouts


def ours(policy, folder, trainer_class=GDPOTrainer, **options):
    return trainer_of(trainer_class, GDPOConfig, policy, folder, **options)


def generate(trainer, rows=12):
    return trainer._generate_and_score_completions(
        [dict(row) for row in dataset(rows // 4) for _ in range(4)]
    )


class Own(GRPOTrainer):
    """May do more than compute, so it is not called."""

    def _generate_and_score_completions(self, inputs):
        return super()._generate_and_score_completions(inputs)


RULES = [
    (GRPOTrainer, GRPOConfig, {}, "grpo"),
    (GRPOTrainer, GRPOConfig, {"scale_rewards": "none"}, "grpo_no_std"),
    (GRPOTrainer, GRPOConfig, {"scale_rewards": "batch"}, "grpo_batch_std"),
    (GRPOTrainer, GRPOConfig, {"multi_objective_aggregation": "normalize_then_sum"}, "gdpo"),
    (RLOOTrainer, RLOOConfig, {"beta": 0.0}, "rloo"),
    (RLOOTrainer, RLOOConfig, {"beta": 0.0, "normalize_advantages": True}, None),
    (Own, GRPOConfig, {}, None),
]


@pytest.mark.parametrize(("trainer_class", "config_class", "options", "rule"), RULES)
def test_a_made_up_batch_names_the_rule_of_trls_trainers(
    trainer_class, config_class, options, rule, place
):
    trainer = trainer_of(trainer_class, config_class, *place, **options)
    assert rule_of(trainer) == rule


def state_of(trainer):
    """Return what a batch changes."""
    return {
        "random": (random.getstate(), torch.get_rng_state().tolist()),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "containers": copy.deepcopy((trainer._metrics, trainer._logs, trainer._pending_metrics)),
        "tokens": trainer.state.num_input_tokens_seen,
        "training": trainer.model.training,
        "attributes": {name: id(value) for name, value in vars(trainer).items()},
    }


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_made_up_batch_leaves_no_trace(at, place):
    trainer = trainer_of(GRPOTrainer, GRPOConfig, *place, max_steps=1)
    if at == "end":
        trainer.train()
    before = state_of(trainer)
    assert rule_of(trainer) == "grpo"
    assert state_of(trainer) == before


def test_a_made_up_batch_calls_no_method_that_was_replaced_on_the_instance(place):
    trainer = trainer_of(GRPOTrainer, GRPOConfig, *place)
    calls = []
    for name in ("_calculate_rewards", "_generate_and_score_completions"):
        setattr(trainer, name, calls.append)
    assert rule_of(trainer) == "grpo"
    assert calls == []


def test_the_check_changes_no_number_of_a_training(place):
    """TRL's metrics, the tokens counted and the completions are those of a run without it."""

    class Unchecked(GDPOTrainer):
        def _check_trl(self):
            pass

    logs = []
    for trainer_class in (GDPOTrainer, Unchecked):
        trainer = ours(*place, trainer_class, learning_rate=0.1, max_steps=2)
        trainer.train()
        assert trainer._between.is_checked == (trainer_class is GDPOTrainer)
        timed = ("step_time", "train_runtime", "samples_per_second", "steps_per_second")
        logs.append(
            [
                {k: v for k, v in entry.items() if not k.endswith(timed)}
                for entry in trainer.state.log_history
            ]
        )
    assert logs[0] == logs[1]
    assert logs[0][-2]["num_tokens"] > 0


def as_trls(function):
    """Let a function look like code of a newer TRL, not like a user's patch."""
    file = inspect.getsourcefile(GRPOTrainer)
    function.__code__ = function.__code__.replace(co_filename=file)


def test_a_trainer_that_cannot_score_a_made_up_batch_has_no_rule(place, monkeypatch):
    def broken(self, inputs):
        raise RuntimeError(inputs[0]["a column of the dataset"])

    as_trls(broken)
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", broken)
    assert rule_of(trainer_of(GRPOTrainer, GRPOConfig, *place)) is None


def moved(monkeypatch, change):
    """Let TRL change its batch after it has computed the advantages."""
    own = GRPOTrainer._generate_and_score_completions

    def scored(self, inputs):
        return change(self, own(self, inputs))

    as_trls(scored)
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", scored)


def test_advantages_that_are_not_ours_are_an_error_before_generation(place, monkeypatch):
    trainer = ours(*place)
    own = GRPOTrainer._calculate_rewards

    def flipped(*args):
        return own(*args).flip(0)

    as_trls(flipped)
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", flipped)
    monkeypatch.setattr(trainer, "rollout_func", lambda *_: pytest.fail("generated"))
    with config_error(r"TRL [\d.]+ does not train on gdpo's advantages"):
        generate(trainer)


def test_a_batch_without_advantages_is_an_error_before_generation(place, monkeypatch):
    class Renamed(dict):
        """Keep the advantages under another name, whatever name they are given."""

        def get(self, key, default=None):
            return default if key == "advantages" else super().get(key, default)

    moved(monkeypatch, lambda self, output: Renamed(output))
    with config_error("does not train on gdpo's advantages"):
        generate(ours(*place))


def test_a_check_that_fails_by_itself_is_logged_and_training_goes_on(place, monkeypatch, caplog):
    def only_real_rows(self, output):
        if self.reward_func_names[0] == "reward_a":
            raise RuntimeError("not a row of the dataset")
        return output

    moved(monkeypatch, only_real_rows)
    assert generate(ours(*place))["advantages"].any()
    assert "failed (RuntimeError: not a row of the dataset)" in caplog.text


def test_a_subclass_with_its_own_rewards_is_not_checked(place):
    class Doubled(GDPOTrainer):
        def _calculate_rewards(self, *args):
            return 2 * super()._calculate_rewards(*args)

    assert generate(ours(*place, Doubled))["advantages"].any()


def test_a_trainer_without_a_method_that_we_wrap_is_an_error_that_names_it(place, monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, batch: batch)
    method = "_calculate_rewards(self, inputs, prompts, completions, completion_ids_list)"
    assert f"GDPOTrainer needs GRPOTrainer.{method}, which TRL" in refusal(ours, *place)


OPTIONAL = [
    ("_tokenize_prompts", "fast_generation does not apply"),
    ("_get_per_token_logps_and_entropies", "completion_only_head: TRL's head is used"),
    ("_get_per_token_logps_and_entropies", "pack_micro_batches: micro-batches remain TRL's"),
    ("_prepare_inputs", "pack_micro_batches: micro-batches remain TRL's"),
]


@pytest.mark.parametrize(("method", "sentence"), OPTIONAL)
def test_a_moved_part_of_an_optional_capability_switches_it_off(
    method, sentence, place, monkeypatch, caplog
):
    own = getattr(GRPOTrainer, method)
    parameters = inspect.signature(own).parameters.values()
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

    def same_by_place(self, *others, **named):
        return own(self, *others, **named)

    same_by_place.__signature__ = inspect.Signature(
        [each.replace(name=f"new_{each.name}") for each in plain if each.name != "batch_size"]
    )
    monkeypatch.setattr(GRPOTrainer, method, same_by_place)
    trainer = ours(*place, max_steps=1)
    assert any(
        sentence in message and f"has no GRPOTrainer.{method}(self" in message
        for message in caplog.messages
    )
    trainer.train()
    assert np.isfinite(trainer.state.log_history[0]["loss"])


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("_buffered_inputs", packer_of),
        ("loss_type", packer_of),
        ("_entropy_bonus_enabled", packer_of),
        ("use_vllm", fast_rollouts),
        ("_tokenizer", fast_rollouts),
        ("pad_to_multiple_of", fast_rollouts),
    ],
)
def test_a_missing_attribute_is_a_reason(name, of, place, caplog):
    trainer = ours(*place)
    trainer.rollout_func = None
    assert of(trainer) is not None
    vars(trainer).pop(name)
    assert of(trainer) is None
    (said,) = caplog.messages
    assert f"no attribute '{name}'" in said


@pytest.mark.parametrize("change", ["removed", "changed"])
@pytest.mark.parametrize(
    "function",
    [
        "trl.trainer.utils.pad",
        "trl.extras.profiling.profiling_context",
        "trl.models.utils.unwrap_model_for_generation",
    ],
)
def test_a_function_that_trl_moves_or_changes_switches_the_fast_generation_off(
    function, change, place, monkeypatch, caplog
):
    trainer = ours(*place)
    trainer.rollout_func = None
    # As in a new process with another TRL.
    monkeypatch.delitem(sys.modules, "gdpo.integrations.trl._sampling")
    if change == "removed":
        monkeypatch.delattr(function)
    else:
        monkeypatch.setattr(function, lambda *, new: new)
    assert fast_rollouts(trainer) is None
    (said,) = caplog.messages
    assert "fast_generation does not apply" in said
    assert (function.rpartition(".")[2] if change == "removed" else "argument") in said


def test_errors_name_the_versions_of_the_conformance():
    pinned = re.search(r"^trl==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    oldest = FRAMEWORKS["trl"].versions[-1].rpartition(".")[0]
    assert f"{oldest} to {pinned[1]}" == _adapter.TESTED
    assert f'"trl>={oldest}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_an_undeclared_package_of_old_trls_is_named():
    """TRL up to 1.13 imports requests. Here, the import of its trainer fails in this way."""
    code = (
        "import sys, importlib.abc\n"
        "class Old(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'trl.trainer.grpo_trainer':\n"
        "            raise ModuleNotFoundError('No module named requests', name='requests')\n"
        "sys.meta_path.insert(0, Old())\n"
        "import gdpo.integrations.trl\n"
    )
    done = python("-c", code)
    assert "MissingExtraError: requests is needed by the GRPO trainer of TRL" in done.stderr
    assert "pip install requests" in done.stderr
