"""Run a function of a test on two gloo processes: `launched` starts them, `main` is what they run.

On one node, or on two: then each process has a launcher of its own, and they meet at an address, as
machines do.

    launched("tests.integrations.packed_two_ranks:results", policy, folder)

The function is called with the policy and the folder on each rank, and returns what that rank says
as JSON.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def launched(function, policy, folder, *, nodes=1):
    """What the function returned on rank 0 and on rank 1."""
    module = ["-m", "tests.integrations.two_ranks", function, str(policy), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *where, *module],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for where in (_one_node() if nodes == 1 else _two_nodes())
    ]
    for launcher in launchers:
        _, told = launcher.communicate()
        assert launcher.returncode == 0, told[-3000:]
    return [json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


def _one_node():
    return [["--standalone", "--nproc-per-node=2"]]


def _two_nodes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    return [[*shared, f"--master-port={port}", f"--node-rank={rank}"] for rank in (0, 1)]


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
