"""Recipes: what a training is to be, read from a file, found by name and checked."""

from gdpo.recipes.read import load_recipe
from gdpo.recipes.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
