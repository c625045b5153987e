"""Reads recipes, which define training runs, from files or by name, and checks them."""

from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
