"""Runs a recipe with another training engine, on one machine or a cluster."""
