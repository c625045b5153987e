"""Runs: the directory of a training, with its lock, checkpoints, environment and README."""

from gdpo.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
