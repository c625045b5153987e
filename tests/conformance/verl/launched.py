"""Runs verl's own checks and dataset on the files that `gdpo launch verl` writes for each recipe.

    python tests/conformance/verl/launched.py FOLDER

verl's dataset must pass the references to the reward function.
"""

import json
import sys
from pathlib import Path

import paths  # noqa: F401  makes `policy` importable
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from gdpo.integrations.verl.settings import read_settings
from gdpo.lab.launch.launch import plan_verl, write_rows
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.starter import shipped_recipes
from gdpo.lab.tasks import Problem
from policy import byte_tokenizer

ONE_GPU = Machines(1, 1)


def composed(recipe, folder):
    """Compose the configuration as verl's `main_ppo` does, with the command's arguments."""
    launch = plan_verl(recipe, ONE_GPU)
    Path(folder, "config.yaml").write_text(launch.config_text)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base=None):
        return compose("config", overrides=list(launch.overrides))


def check(recipe, folder):
    """Check verl's configuration classes that the file creates, after verl's own checks."""
    config = composed(recipe, folder)
    reference = need_reference_policy(config)
    validate_config(config, use_reference_policy=reference, use_critic=need_critic(config))
    # verl reads `algorithm` as a plain mapping. Its class would refuse gdpo_options.
    theirs = {key: value for key, value in config.algorithm.items() if key != "gdpo_options"}
    trained = config.actor_rollout_ref
    parts = theirs, trained.actor, trained.rollout  # that of `reward` fails on its own defaults
    classes = [type(omega_conf_to_dataclass(part)).__name__ for part in parts]
    assert classes == ["AlgoConfig", "FSDPActorConfig", "RolloutConfig"]
    assert read_settings(config.algorithm).names
    check_rows(config, folder)


def check_rows(config, folder):
    """Check what verl's dataset passes to the reward function for two rows."""
    file = Path(folder, "rows.parquet")
    references = [{"answer": "1", "tests": ["a", "b"]}, {"answer": "2", "tests": []}]
    message = {"role": "user", "content": "how many"}
    write_rows(file, [Problem([message], each) for each in references], "gsm8k")
    data = RLHFDataset(str(file), byte_tokenizer(), config.data)
    batch = collate_fn([data[0], data[1]])
    given = [json.loads(each["ground_truth"]) for each in batch["reward_model"]]
    assert given == references
    assert list(batch["raw_prompt"][0]) == [message]


if __name__ == "__main__":
    for path in shipped_recipes().values():
        check(load_recipe(path), Path(sys.argv[1]).absolute())
