"""Sends the weights of TRL's server mode through a file, because NCCL needs a GPU.

Requests, sampling, log-probabilities and the time of each update stay TRL's.
"""

import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def patch():
    """Replace the two methods of TRL's client that need a GPU."""
    from trl.generation.vllm_client import VLLMClient

    VLLMClient.init_communicator = _init_communicator
    VLLMClient.update_named_params = _update_named_params
    VLLMClient.close_communicator = lambda self: None


def _init_communicator(self, device=0):
    info = {"init_info": {"world_size": self.get_world_size() + 1}}
    self._post(f"{self.base_url}/init_weight_transfer_engine", json=info)


def _update_named_params(self, metadata, named_params):
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        path = str(Path(folder, "weights.safetensors"))
        save_file({name: each.detach().contiguous().clone() for name, each in named_params}, path)
        self._start_weight_update()
        self._post(f"{self.base_url}/update_weights", json={"update_info": {"path": path}})
        self._finish_weight_update()
