"""Experiments: several arms, many seeds, and what can honestly be said of their difference."""

from gdpo.experiments._analysis import analyse
from gdpo.experiments._comparison import Comparison, Difference, Interval, Outcome, Survival
from gdpo.experiments._display import grid_display
from gdpo.experiments._permutation import PValue, holm, permutation_test
from gdpo.experiments._process import (
    Training,
    describe_ending,
    signals_held,
    start_training,
    stop_trainings,
    terminable,
)
from gdpo.experiments._reading import (
    LOGS,
    Experiment,
    Measured,
    Plan,
    Run,
    read_experiment,
    read_plan,
    run_name,
)
from gdpo.experiments._robust import (
    bootstrap,
    expanded_level,
    interquartile_mean,
    paired_difference,
)
from gdpo.experiments._survival import kaplan_meier, log_rank_scores
from gdpo.experiments._threshold import (
    REACHED,
    WINDOW,
    best,
    final,
    first_reached,
    running_mean,
    start,
    tenth,
)
from gdpo.experiments.grid import Cell, Grid, estimator_of, make_grid, run_grid

__all__ = [
    "LOGS",
    "REACHED",
    "WINDOW",
    "Cell",
    "Comparison",
    "Difference",
    "Experiment",
    "Grid",
    "Interval",
    "Measured",
    "Outcome",
    "PValue",
    "Plan",
    "Run",
    "Survival",
    "Training",
    "analyse",
    "best",
    "bootstrap",
    "describe_ending",
    "estimator_of",
    "expanded_level",
    "final",
    "first_reached",
    "grid_display",
    "holm",
    "interquartile_mean",
    "kaplan_meier",
    "log_rank_scores",
    "make_grid",
    "paired_difference",
    "permutation_test",
    "read_experiment",
    "read_plan",
    "run_grid",
    "run_name",
    "running_mean",
    "signals_held",
    "start",
    "start_training",
    "stop_trainings",
    "tenth",
    "terminable",
]
