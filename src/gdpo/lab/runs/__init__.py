"""Manages run directories: lock, checkpoints, environment, resuming and README."""
