"""Run by accelerate on two gloo processes: every rank's advantages, ours and TRL's, go into files.

A group of 4 straddles the two ranks: each holds 6 of the 12 rollouts of a generation batch.
"""

import json
import sys
from pathlib import Path

from tests.integrations.arms import train


def main(policy: str, folder: str) -> None:
    import torch.distributed as dist

    for arm in ("ours", "theirs"):
        own = {"rollouts_dir": str(Path(folder) / arm / "rollouts")} if arm == "ours" else {}
        record = train(arm, policy, Path(folder) / arm, per_device_train_batch_size=6, **own)
        rank = dist.get_rank()
        (Path(folder) / f"{arm}_{rank}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
