"""Launching: a recipe as a run of another engine, on one machine or a cluster."""

from gdpo.launch._batches import Machines
from gdpo.launch._launch import Launch, launch_verl, plan_verl

__all__ = ["Launch", "Machines", "launch_verl", "plan_verl"]
