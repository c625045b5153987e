"""Runs verl on a CPU: set VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda. verl loads this plugin.

It registers a platform `cpu`, adds to torch.cpu what verl calls on torch.cuda, and makes gloo the
only backend. The GPUs that verl requests of Ray are slots: set +ray_kwargs.ray_init.num_gpus.
VERL_ENGINE_DEVICE=cuda selects verl's FSDP engine, which runs on gloo without changes.
"""

import os
from contextlib import nullcontext

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NOTHING = (
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "manual_seed",
    "manual_seed_all",
)
ZERO = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def complete(module):
    """Add the functions of torch.cuda that verl calls and torch.cpu lacks."""
    answers = {
        **dict.fromkeys(NOTHING),
        **dict.fromkeys(ZERO, 0),
        "mem_get_info": (0, 0),
        "get_device_name": "CPU",
    }
    for name, answer in answers.items():
        if not hasattr(module, name):
            setattr(module, name, lambda *_, answer=answer, **__: answer)
    module.get_rng_state, module.set_rng_state = torch.get_rng_state, torch.set_rng_state


def answering(answer):
    """Return a method that answers every call in the same way."""
    return lambda self, *_, **__: answer


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "generic"
    device_module = torch.cpu  # verl compares it with torch.cpu

    is_available = answering(True)
    device_count = answering(1)
    current_device = answering(torch.device("cpu"))  # verl passes it to tensor.to
    get_device_capability = answering((None, None))
    communication_backend_name = answering("gloo")
    visible_devices_envvar = answering("CUDA_VISIBLE_DEVICES")
    ray_resource_name = answering("GPU")
    ray_noset_envvars = answering([])
    is_ipc_supported = answering(False)  # verl then sends weights to vLLM through shared memory
    nvtx_range = answering(nullcontext())
    set_device = synchronize = set_allocator_settings = empty_cache = answering(None)
    profiler_start = profiler_stop = cudart = answering(None)

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


def use_gloo_alone():
    """Initialize process groups with gloo: verl would name a backend for `cpu` twice."""
    import verl.utils.distributed as distributed

    initialize = distributed.initialize_global_process_group_ray

    def initialize_gloo(timeout_second=None, backend=None):
        return initialize(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize_gloo


def pin_nothing():
    """Leave tensors as they are where verl pins memory: only a copy to a GPU needs it."""
    torch.Tensor.pin_memory = lambda self, device=None: self


if os.environ.get("VERL_PLATFORM") == "cpu":
    complete(torch.cpu)
    pin_nothing()
    use_gloo_alone()
