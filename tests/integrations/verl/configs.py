"""Stands in for verl's configuration."""


class Config(dict):
    """A mapping with attributes, like OmegaConf's."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Queue:
    """Ignores fields that it does not have, as TransferQueue does."""

    def __init__(self, **fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: self.fields[name] for name in select_fields if name in self.fields}
