"""Training: a recipe becomes a run directory, through checks, TRL's trainer and interruptions."""

from gdpo.training._cache import cache_folder, cached
from gdpo.training._data import Rows, read_data
from gdpo.training._preflight import Finding, RowCheck, Verdict, check
from gdpo.training._progress import RunView, show
from gdpo.training._read_recipe import load_recipe, read_recipe
from gdpo.training._recipe import BatchConfig, DataConfig, Recipe, RewardConfig
from gdpo.training._run_directory import RunDirectory
from gdpo.training._shipped import copy_recipe, shipped_recipe, shipped_recipes
from gdpo.training._smollm2 import SMOLLM2, convert_smollm2
from gdpo.training._summary import RewardChange, summary_table
from gdpo.training._train import RunResult, leave_processes, train

__all__ = [
    "SMOLLM2",
    "BatchConfig",
    "DataConfig",
    "Finding",
    "Recipe",
    "RewardChange",
    "RewardConfig",
    "RowCheck",
    "Rows",
    "RunDirectory",
    "RunResult",
    "RunView",
    "Verdict",
    "cache_folder",
    "cached",
    "check",
    "convert_smollm2",
    "copy_recipe",
    "leave_processes",
    "load_recipe",
    "read_data",
    "read_recipe",
    "shipped_recipe",
    "shipped_recipes",
    "show",
    "summary_table",
    "train",
]
