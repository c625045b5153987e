"""Checks verl's own configuration and reward loading with typical command lines.

python tests/conformance/verl/configuration.py
"""

import asyncio
import json
from pathlib import Path

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from paths import result_of
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.utils import need_critic

from gdpo.integrations.verl._trainers import check_itself
from gdpo.lab.tasks import resolve_task

KEYS = "+algorithm.gdpo_reward_keys=[correctness,format]"
FUNCTION = [
    "reward.custom_reward_function.path=pkg://gdpo.integrations.verl",
    "reward.custom_reward_function.name=compute_score",
    "+reward.custom_reward_function.reward_kwargs.task=gsm8k",
    "reward.reward_manager.name=gdpo_tokens",
]
ACCEPTED = {
    "plain": [KEYS],
    "another": ["algorithm.adv_estimator=gdpo/per_reward_batch_std", KEYS],
    "own": ["algorithm.adv_estimator=gdpo/gdpo.advantages:mo_grpo", KEYS],
    "weights by name": [KEYS, "+algorithm.gdpo_reward_weights={correctness: 1.0, format: 0.5}"],
    "options": [KEYS, "+algorithm.gdpo_options={token_counts: true, noise_floor: {format: 0.1}}"],
    "reward function": [KEYS, *FUNCTION],
    "watched": ["algorithm.adv_estimator=rloo", "+algorithm.gdpo_watch=true", KEYS],
    "replaced": ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_replace=true", KEYS],
    "verl's own": ["algorithm.adv_estimator=gdpo", KEYS],
}
REFUSED = {
    "no keys": ([], "ConfigError: algorithm.gdpo_reward_keys=None"),
    "watched without keys": (
        ["algorithm.adv_estimator=grpo", "+algorithm.gdpo_watch=true"],
        "ConfigError: algorithm.gdpo_reward_keys=None",
    ),
    "kl in reward": (
        [KEYS, "algorithm.use_kl_in_reward=True"],
        "ConfigError: algorithm.use_kl_in_reward=True",
    ),
    "keys that are not given": (
        ["+algorithm.gdpo_reward_keys=[brevity]", *FUNCTION],
        "these reward_kwargs, returns no 'brevity'",
    ),
}


def configured(*lines):
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=["algorithm.adv_estimator=gdpo/gdpo", *lines])


class Tokenizer:
    """Decodes everything to one text."""

    def __init__(self, text):
        self.text = text

    def decode(self, ids, *, skip_special_tokens):
        return self.text


async def rewarded():
    """Return the result of verl's reward manager for the reference answer."""
    task = resolve_task("gsm8k")
    reference = task.read_row({"question": "40 + 2?", "answer": "#### 42"}).reference
    gold = task.gold_completion(reference)
    manager = load_reward_manager(configured(*FUNCTION), Tokenizer(gold))
    columns = {
        "data_source": ["gsm8k"],
        "reward_model": [{"ground_truth": json.dumps(reference)}],
        "extra_info": [{"index": 1}],
    }
    tensors = {
        "responses": torch.ones(1, 5).long(),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]),
    }
    manager.loop = asyncio.get_running_loop()
    return await manager.run_single(
        DataProto(
            batch=TensorDict(tensors, batch_size=1),
            non_tensor_batch={k: np.array(v, dtype=object) for k, v in columns.items()},
        )
    )


def checked(estimator):
    """Return the result of the check at start if this function is registered as gdpo's."""
    ours = core_algos.ADV_ESTIMATOR_REGISTRY["gdpo/gdpo"]
    run = ours.__self__
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo/gdpo"] = estimator or ours
    run.is_checked = False
    try:
        return result_of(check_itself, run)
    finally:
        core_algos.ADV_ESTIMATOR_REGISTRY["gdpo/gdpo"] = ours


def answer(lines):
    """Return whether verl needs a critic for a command line, or its error."""
    return result_of(lambda: need_critic(configured(*lines)))


def main():
    for name, lines in ACCEPTED.items():
        assert answer(lines) is False, name
    for name, (lines, said) in REFUSED.items():
        assert said in answer(lines), name
    assert checked(None) is None
    of_another = checked(core_algos.compute_gdpo_outcome_advantage)
    assert of_another.startswith("ConfigError: gdpo's estimators do not work")
    given = asyncio.run(rewarded())
    scores = given["reward_extra_info"]
    assert given["reward_score"] == scores["score"] == sum(scores.values()) / 2 > 0
    assert {"correctness", "format"} < set(scores)


if __name__ == "__main__":
    main()
