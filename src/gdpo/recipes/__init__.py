"""Reads recipes, which define training runs, from files or by name, and checks them."""

from gdpo.recipes.read import load_recipe
from gdpo.recipes.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
