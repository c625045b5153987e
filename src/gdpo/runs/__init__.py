"""Runs: the directory of a training, with its lock, checkpoints, environment and README."""
