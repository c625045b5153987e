"""Run a function of a test on two gloo processes: `launched` starts them, `main` is what they run.

    launched("tests.integrations.packed_two_ranks:results", policy, folder)

The function is called with the policy and the folder on each rank, and returns what that rank says
as JSON.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path


def launched(function, policy, folder):
    """What the function returned on rank 0 and on rank 1."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    module = ["-m", "tests.integrations.two_ranks", function, str(policy), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(launch + module, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


def main(function, policy, folder):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    said = getattr(importlib.import_module(module), name)(policy, Path(folder))
    (Path(folder) / f"rank_{dist.get_rank()}.json").write_text(json.dumps(said))
    # Threads of the group that still run at the end of the interpreter abort it now and then.
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
