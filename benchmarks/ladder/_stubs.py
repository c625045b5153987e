"""Stands in for packages that the published code imports and that this step does not need.

`TensorDict` is a container: it holds tensors with the same first dimension, and computes nothing.
"""

import sys
from types import ModuleType

import torch


class Anything:
    """Can be called, subclassed, used as a decorator, and asked for any attribute."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *_args, **_kwargs):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Stub(ModuleType):
    """A module without contents, of which every name can be imported."""

    __path__ = ()
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything if name[0].isupper() else Anything()


class _Finder:
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, *_):
        from importlib.machinery import ModuleSpec

        if any(name == each or name.startswith(f"{each}.") for each in self.names):
            if name.startswith("flash_attn.ops"):
                return None  # then the published code takes its path without flash attention
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def stand_in(*names):
    """Let `import name` succeed for these modules and all modules below them."""
    sys.meta_path.insert(0, _Finder(names))


class TensorDict:
    """The part of `tensordict.TensorDict` that the published code calls."""

    def __init__(self, source, batch_size=None):  # noqa: ARG002  passed by name
        self.tensors = dict(source)
        self.batch_size = torch.Size([len(next(iter(self.tensors.values())))])

    def _new(self, change):
        return TensorDict({key: change(value) for key, value in self.tensors.items()})

    def __getitem__(self, at):
        if isinstance(at, str):
            return self.tensors[at]
        taken = {key: value[at] for key, value in self.tensors.items()}
        return taken if isinstance(at, int) else TensorDict(taken)

    def __setitem__(self, key, value):
        self.tensors[key] = value

    def keys(self):
        return self.tensors.keys()

    def pop(self, key):
        return self.tensors.pop(key)

    def select(self, *keys):
        return TensorDict({key: self.tensors[key] for key in keys})

    def split(self, size):
        return [self[start : start + size] for start in range(0, *self.batch_size, size)]

    def to(self, _device):
        return self

    def cuda(self):
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        assert function is torch.cat, function
        return TensorDict(
            {key: torch.cat([each[key] for each in args[0]]) for key in args[0][0].tensors}
        )
