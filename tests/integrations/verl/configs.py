"""Stand-in for a configuration of verl's."""


class Config(dict):
    """As OmegaConf has it: a mapping with attributes."""

    __getattr__ = dict.__getitem__
