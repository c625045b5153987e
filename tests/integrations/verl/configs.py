"""Stands in for verl's configuration."""


class Config(dict):
    """A mapping with attributes, like OmegaConf's."""

    __getattr__ = dict.__getitem__
