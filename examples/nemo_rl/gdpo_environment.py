"""An environment of NeMo-RL that computes gdpo's rewards. README.md has the settings.

Copy this file next to your script, and call `register` there.
"""

import json
from pkgutil import resolve_name
from typing import Any

import ray
import torch
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from nemo_rl.environments.utils import register_env
from transformers import AutoTokenizer

from gdpo import DataError
from gdpo.rewards import Gate, Scorer, apply_gates


def register(name: str = "gdpo") -> None:
    """Register the environment under this name, with the Python of the script."""
    register_env(name, f"{__name__}.GdpoEnvironment")
    ACTOR_ENVIRONMENT_REGISTRY[f"{__name__}.GdpoEnvironment"] = PY_EXECUTABLES.SYSTEM


@ray.remote(max_restarts=-1, max_task_retries=-1)
class GdpoEnvironment(EnvironmentInterface):
    """Scores the last message of each conversation, and ends the episode.

    Args:
        cfg: `rewards` is the `module:attribute` of a list of rewards. `gates` are the gates, keyed
            by reward. `ground_truth` is the field of the reference for ground truths that are
            plain text. Rewards that count tokens need `tokenizer`.
    """

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.scorer = Scorer(resolve_name(cfg["rewards"]), workers=1)
        self.names = [reward.name for reward in self.scorer.rewards]
        self.gates = {name: Gate(**gate) for name, gate in cfg.get("gates", {}).items()}
        self.field, name = cfg.get("ground_truth"), cfg.get("tokenizer")
        self.tokenizer = AutoTokenizer.from_pretrained(name) if name else None

    def step(self, message_log_batch: Any, metadata: Any) -> EnvironmentReturn:
        """Return an array for each reward. NaN: the reward does not apply, or failed."""
        said, tokens = [log[-1:] for log in message_log_batch], None
        if self.tokenizer is not None:
            texts = [log[-1]["content"] for log in message_log_batch]
            tokens = list(map(len, self.tokenizer(texts, add_special_tokens=False)["input_ids"]))
        truths = [self.reference(info["ground_truth"]) for info in metadata]
        values = self.scorer.score(said, truths, num_tokens=tokens).values
        rewards = torch.tensor(apply_gates(values, self.names, self.gates), dtype=torch.float32)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in said],
            metadata=metadata,
            next_stop_strings=[None] * len(said),
            rewards={f"reward/{name}": rewards[:, k] for k, name in enumerate(self.names)},
            terminateds=torch.ones(len(said)),
            answers=None,
        )

    def reference(self, truth: Any) -> dict[str, Any]:
        """Return what the rewards read: a dict, from a dict, a JSON object or plain text."""
        if self.field is not None:
            return {self.field: truth}
        found = json.loads(truth) if isinstance(truth, str) else truth
        if not isinstance(found, dict):
            raise DataError(
                f"ground_truth is {truth!r:.80}: write a JSON object, or set env.gdpo.ground_truth "
                "to the field of the reference that holds this text"
            )
        return found

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Return the batch unchanged."""
        return batch, {}
