"""Recipes: what a training is to be, read from a file, found by name and checked."""

from gdpo.recipes.read import load_recipe, read_recipe
from gdpo.recipes.recipe import BatchConfig, DataConfig, GateConfig, Recipe, RewardConfig
from gdpo.recipes.resolve import Resolved, resolve

__all__ = [
    "BatchConfig",
    "DataConfig",
    "GateConfig",
    "Recipe",
    "Resolved",
    "RewardConfig",
    "load_recipe",
    "read_recipe",
    "resolve",
]
