"""Computes advantages with verl's own estimators on verl's code paths, watched or not.

    python tests/conformance/verl/watching.py [--watch]

Prints one line of JSON per path and estimator: a digest of the bits of verl's advantages and
returns, and what gdpo logs. `VERL_USE_EXTERNAL_PLUGINS=none` gives the digests without gdpo.
"""

import hashlib
import json
import logging
import sys

import torch
from paths import PATHS, WITHOUT, Batch, result_of
from verl.trainer.ppo import core_algos

ESTIMATORS = ("grpo", "gdpo", "rloo", "grpo_vectorized", "reinforce_plus_plus", "opo", "gae")


def digest(*tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


class Said(logging.Handler):
    """Stores what gdpo logs."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def logged():
    """Return what the trainer would log of the batch before."""
    return {} if WITHOUT else core_algos.ADV_ESTIMATOR_REGISTRY["gdpo/gdpo"].__self__.metrics()


def watched(path, estimator, said, *, watch):
    said.messages.clear()
    batch = Batch(3)
    more = {"gdpo_watch": True} if watch else {}
    advantages, mask, *_ = PATHS[path](batch, adv_estimator=estimator, **more)
    return {"digest": digest(advantages, mask), "metrics": logged(), "said": list(said.messages)}


def by_verl_alone():
    """Return the digest of verl's own gdpo on the rows of the V1 path, called directly.

    Its `KeyError` on that path is what the plugin cures.
    """
    if WITHOUT:
        return None
    batch, seen = Batch(3), {}
    theirs = core_algos.compute_gdpo_outcome_advantage

    def called(**given):
        seen.update(given)
        return theirs(**given)

    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = called
    advantages, mask, of, count = PATHS["V1"](batch, adv_estimator="gdpo")
    core_algos.ADV_ESTIMATOR_REGISTRY["gdpo"] = theirs
    rows = torch.tensor(of[:count])
    columns = {name: batch.values[rows, k] for k, name in enumerate(batch.names)}
    mask = mask.long()
    prompts = torch.ones(count, 3).long()
    whole = {"prompts": prompts, "attention_mask": torch.cat([prompts, mask], 1)}
    wanted, _ = theirs(
        token_level_rewards=torch.zeros(mask.shape),
        response_mask=mask,
        index=[batch.uids[row] for row in rows],
        config={"gdpo_reward_keys": batch.names, "gdpo_reward_weights": batch.weights},
        non_tensor_batch=columns,
        batch=whole,
    )
    return {
        "rows": len(seen["response_mask"]),
        "same": bool((advantages == wanted).all()),
        "nonzero": bool(advantages.any()),
    }


def main(watch):
    said = Said()
    logging.getLogger("gdpo").addHandler(said)
    for path in PATHS:
        for estimator in ESTIMATORS:
            result = result_of(lambda *of: watched(*of, said, watch=watch), path, estimator)
            line = {"path": path, "estimator": estimator, "result": result}
            sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.write(json.dumps({"path": "V1, delivered", "result": by_verl_alone()}) + "\n")


if __name__ == "__main__":
    main("--watch" in sys.argv)
