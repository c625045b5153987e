"""Stands in for verl's configuration."""


class Config(dict):
    """A mapping with attributes, like OmegaConf's."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]
