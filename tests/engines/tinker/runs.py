"""A complete training through SkyRL's Tinker server (JAX, CPU) with `examples/tinker_training.py`.

python -m tests.engines tinker
"""

import json
import os
import re
import subprocess
import sys

from tests.engines.checks import figures, main
from tests.engines.servers import free_port, serving
from tests.environments import ROOT

# SkyRL reads the arguments of the `uv run` that started it, and starts its engine in the same way.
# Its models need Python 3.12's TypedDict.
UV = '#!/bin/bash\nwhile [ "$1" != -m ]; do shift; done\n"{python}" "$@"\n'
TYPED_DICT = "import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict\n"
BACKEND = {"max_lora_adapters": 3, "max_lora_rank": 8}

os.environ |= {"TINKER_API_KEY": "tml-dummy", "TINKER_TELEMETRY": "0"}


def gdpo(folder, policy):
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ["--model", policy, "--url", url, "--rollouts", folder / "rollouts"]
    options += ["--steps", "20"]
    command, variables = server(folder, policy, port)
    with serving(command, f"{url}/api/v1/healthz", folder / "server.log", variables):
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / "tinker_training.py", *options],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    differences = [float(each) for each in re.findall(r"differ by ([\d.]+)", done.stdout)]
    assert len(differences) == 20, done.stdout
    return figures(folder / "rollouts", ["digits", "brevity"], by=0.1, differences=differences)


def server(folder, policy, port):
    """Return the command of SkyRL's server, and its environment variables."""
    start = folder / "start"
    start.mkdir()
    (start / "uv").write_text(UV.format(python=sys.executable))
    (start / "uv").chmod(0o755)
    (start / "sitecustomize.py").write_text(TYPED_DICT)
    command = [start / "uv", "run", "-m", "skyrl.tinker.api", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--base-model", policy]
    command += ["--backend-config", json.dumps(BACKEND)]
    command += ["--database-url", f"sqlite:///{folder}/tinker.db"]
    command += ["--checkpoints-base", folder / "checkpoints"]
    path = {
        name: os.pathsep.join([str(start), os.environ.get(name, "")])
        for name in ("PATH", "PYTHONPATH")
    }
    return command, path | {"JAX_PLATFORMS": "cpu"}


if __name__ == "__main__":
    main({"gdpo": gdpo}, ["skyrl", "tinker", "jax"])
