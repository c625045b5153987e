"""Lets the weights of vLLM be replaced on a CPU. vLLM loads this plugin in each of its processes.

vLLM packs the weights of linear layers for its CPU kernels and discards the originals, so that
`load_weights` of a new policy has nothing to write to. Here the originals stay. For `vllm serve`,
whose own transfers are NCCL and CUDA IPC, weights can also be sent through a file.
"""


def register():
    import torch
    import vllm.model_executor.layers.utils as layers
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    def keep_weights(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = keep_weights
    if "file" not in Factory._registry:
        Factory.register_engine("file", __name__, "FileWeightTransferEngine")


def __getattr__(name):
    # vLLM resolves the class by name, after it can be imported.
    if name == "FileWeightTransferEngine":
        return _engine()
    raise AttributeError(name)


def _engine():
    from dataclasses import dataclass

    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer import base

    @dataclass
    class Init(base.WeightTransferInitInfo):
        world_size: int = 1

    @dataclass
    class Update(base.WeightTransferUpdateInfo):
        path: str = ""

    class FileWeightTransferEngine(base.WeightTransferEngine[Init, Update]):
        init_info_cls = Init
        update_info_cls = Update

        def nothing(self, *_):
            pass

        init_transfer_engine = start_weight_update = finish_weight_update = shutdown = nothing

        def receive_weights(self, update_info):
            self.model.load_weights(load_file(update_info.path).items())

    return FileWeightTransferEngine
