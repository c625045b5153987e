"""Checks NeMo-RL's own configuration and environments with typical user settings.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/configuration.py

NeMo-RL's `calculate_rewards` calls our environment in a Ray actor that `create_env` created.
"""

from source import EXAMPLE, configured, result_of, start

from gdpo.integrations.nemo_rl import install
from gdpo.lab.tasks import resolve_task

RECIPE = EXAMPLE / "gsm8k.yaml"
KEYS = {"gdpo_reward_keys": ["correctness", "format"]}
ACCEPTED = {
    "plain": KEYS,
    "another": {"name": "gdpo/per_reward_batch_std", **KEYS},
    "own": {"name": "gdpo/gdpo.advantages:mo_grpo", **KEYS},
    "weights by name": {**KEYS, "gdpo_reward_weights": {"correctness": 1.0, "format": 0.5}},
    "options": {**KEYS, "gdpo_options": {"token_counts": True, "noise_floor": {"format": 0.1}}},
}
REFUSED = {
    "no keys": ({}, "ConfigError: grpo.adv_estimator.gdpo_reward_keys=None"),
    "leave one out": (
        {**KEYS, "use_leave_one_out_baseline": True},
        "use_leave_one_out_baseline=true does not work",
    ),
    "weights by the alphabet": ({**KEYS, "reward_weights": [1.0, 0.5]}, "alphabetical"),
}


def made(adv_estimator):
    """Return the class of the estimator that NeMo-RL's own function creates."""
    from nemo_rl.algorithms import grpo

    return type(grpo._create_advantage_estimator(configured(**adv_estimator))).__name__


def recipe():
    from nemo_rl.algorithms.grpo import MasterConfig
    from nemo_rl.utils.config import load_config
    from omegaconf import OmegaConf

    return MasterConfig(**OmegaConf.to_container(load_config(RECIPE), resolve=True))


def rewarded(env):
    """Return NeMo-RL's rewards of the reference answer, a number and no number, and the ends."""
    import gdpo_environment
    from nemo_rl.environments.utils import create_env
    from nemo_rl.experience.rollouts import calculate_rewards

    gdpo_environment.register()
    gold = resolve_task("gsm8k").gold_completion({"answer": "42"})
    ask = {"role": "user", "content": "40 + 2?"}
    batch = {
        "message_log": [[ask, {"role": "assistant", "content": t}] for t in (gold, "42", "no")],
        "task_name": ["gsm8k"] * 3,
        "extra_env_info": [{"ground_truth": "42"}] * 3,
    }
    answer = calculate_rewards(batch, {"gsm8k": create_env("gdpo", env)})
    rewards = {name: values.tolist() for name, values in answer.rewards.items()}
    return rewards, answer.terminateds.tolist()


def main():
    start()
    install()
    install()
    for name, config in ACCEPTED.items():
        assert result_of(made, config) == "AdvantageEstimator", name
    for name, (config, said) in REFUSED.items():
        assert said in result_of(made, config), name
    assert made({"name": "grpo"}) == "GRPOAdvantageEstimator"
    config = recipe()
    keys = config.grpo.adv_estimator.model_extra["gdpo_reward_keys"]
    assert keys == ["correctness", "integer", "format"]
    rewards, ended = rewarded(config.env["gdpo"])
    assert rewards == {
        "reward/correctness": [1.0, 1.0, 0.0],
        "reward/integer": [1.0, 1.0, 0.0],
        "reward/format": [1.0, 0.0, 0.0],
    }
    assert ended == [1.0, 1.0, 1.0]


if __name__ == "__main__":
    main()
