"""Sends the weights of verl's asynchronous trainers through a file.

verl imports this module (`custom_backend_module`). Its own ways, such as NCCL, need a GPU.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("file")
class FileCheckpointEngine(CheckpointEngine):
    """Writes the weights of the first trainer to shared memory, and reads them in each vLLM."""

    def __init__(self, *, bucket_size, is_master=False):
        self.is_master = is_master

    def prepare(self):
        return tempfile.mkdtemp(dir="/dev/shm") if self.is_master else None

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        folder = metadata[0]
        return {"folder": [folder] * actor_wg_world_size}, {"folder": [folder] * rollout_world_size}

    def init_process_group(self, folder):
        self.file = Path(folder, "weights.safetensors")

    async def send_weights(self, weights, global_steps=None):
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in weights}
        if self.is_master:  # the others only take part in gathering the shards
            save_file(tensors, self.file.with_suffix(".partial"))
            self.file.with_suffix(".partial").rename(self.file)

    async def receive_weights(self, global_steps=None):
        while not self.file.exists():
            await asyncio.sleep(0.05)
        for named in load_file(self.file).items():
            yield named

    def finalize(self):
        if self.is_master:
            shutil.rmtree(self.file.parent)
