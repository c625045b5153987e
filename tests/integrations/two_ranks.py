"""Runs a test's function on two gloo processes. `launched` starts them, and they run `main`.

The processes are on one node, or on two. On two nodes, each process has its own launcher, and they
connect by an address, as machines do.

    launched("tests.integrations.packed_two_ranks:results", policy, folder)

Each rank calls the function with the policy and the folder. The function returns a JSON value.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest
from tests.checkout import environment
from tests.integrations.needs import NEEDS_TRITON


def launched(function, policy, folder, *, nodes=1, timeout=600):
    """Return the function's results on rank 0 and on rank 1, which end after `timeout` seconds."""
    module = ["-m", "tests.integrations.two_ranks", function, str(policy), str(folder)]
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *where, *module],
            env=environment(OMP_NUM_THREADS="1"),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for where in (_one_node() if nodes == 1 else _two_nodes())
    ]
    # A launcher that is terminated ends its ranks.
    timer = Timer(timeout, lambda: [launcher.terminate() for launcher in launchers])
    timer.start()
    outputs = [launcher.communicate()[1] for launcher in launchers]
    timer.cancel()
    if any("'NoneType' object has no attribute 'apply'" in output for output in outputs):
        pytest.skip(NEEDS_TRITON)
    for launcher, output in zip(launchers, outputs, strict=True):
        assert launcher.returncode == 0, output[-3000:]
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
    result = getattr(importlib.import_module(module), name)(policy, Path(folder))
    (Path(folder) / f"rank_{dist.get_rank()}.json").write_text(json.dumps(result))
    # Threads of the process group that still run when the interpreter ends sometimes abort it, also
    # after the group was destroyed.
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
