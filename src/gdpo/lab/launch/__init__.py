"""Runs a recipe with a different training engine, on one machine or on a cluster."""
