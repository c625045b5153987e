"""Launching: a recipe as a run of another engine, on one machine or a cluster."""
