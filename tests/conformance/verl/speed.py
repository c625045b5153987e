"""Times verl's own GDPO and ours for one batch, called as verl calls them.

    python tests/conformance/verl/speed.py

1,024 prompts x 16 rollouts, 3 rewards, 1,024 tokens: medians of 9, in seconds, alternating.
"""

import json
import os
import sys
import uuid
from statistics import median
from time import perf_counter

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto, __version__
from verl.trainer.ppo import core_algos, ray_trainer

PROMPTS, SAMPLES, TOKENS = 1024, 16, 1024
NAMES = ["correct", "format", "length"]


def made():
    rng = np.random.default_rng(0)
    rows = PROMPTS * SAMPLES
    mask = (torch.arange(TOKENS) < torch.tensor(rng.integers(1, TOKENS + 1, rows))[:, None]).long()
    prompts = torch.ones(rows, 8, dtype=torch.long)
    tensors = {
        "prompts": prompts,
        "attention_mask": torch.cat([prompts, mask], 1),
        "response_mask": mask,
        "token_level_rewards": torch.zeros(mask.shape),
    }
    columns = {name: rng.random(rows) for name in NAMES}
    columns["uid"] = np.repeat([str(uuid.UUID(int=i)) for i in range(PROMPTS)], SAMPLES).astype(
        object
    )
    return DataProto(batch=TensorDict(tensors, batch_size=rows), non_tensor_batch=columns)


def main():
    data, run = made(), core_algos.ADV_ESTIMATOR_REGISTRY["gdpo/gdpo"].__self__
    algorithm = {
        "adv_estimator": "gdpo",
        "gdpo_reward_keys": NAMES,
        "norm_adv_by_std_in_grpo": True,
    }
    algorithm = OmegaConf.create({"algorithm": algorithm}).algorithm
    seconds = {"verl": [], "gdpo": [], "gdpo, its metrics": []}
    for _ in range(9):
        for name, estimator in (("verl", "gdpo"), ("gdpo", "gdpo/gdpo")):
            algorithm.adv_estimator = estimator
            start = perf_counter()
            ray_trainer.compute_advantage(data, adv_estimator=estimator, config=algorithm)
            seconds[name].append(perf_counter() - start)
        start = perf_counter()
        run.metrics()
        seconds["gdpo, its metrics"].append(perf_counter() - start)
    result = {name: round(median(times), 4) for name, times in seconds.items()}
    result |= {"times faster": round(median(seconds["verl"]) / median(seconds["gdpo"]), 1)}
    result |= {"verl version": __version__, "torch": torch.__version__, "cores": os.cpu_count()}
    sys.stdout.write(json.dumps({**result, "threads": torch.get_num_threads()}) + "\n")


if __name__ == "__main__":
    main()
