"""Launching: a recipe as a run of another engine, on one machine or a cluster."""

from gdpo.launch._launch import Launch, launch_verl, plan_verl
from gdpo.launch._machines import Machines

__all__ = ["Launch", "Machines", "launch_verl", "plan_verl"]
