"""Implements the commands of `gdpo.lab`, one file per command: options and output, no logic."""

from gdpo.lab.cli.check import check
from gdpo.lab.cli.compare import compare
from gdpo.lab.cli.effect import effect
from gdpo.lab.cli.evaluate import evaluate
from gdpo.lab.cli.init import init
from gdpo.lab.cli.launch import launch
from gdpo.lab.cli.recipes import recipes
from gdpo.lab.cli.report import report
from gdpo.lab.cli.train import train

VERBS = (init, recipes, check, train, compare, report, effect, evaluate, launch)
"""Commands of `gdpo.lab`, in the order of `gdpo --help`."""
