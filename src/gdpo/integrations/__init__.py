"""Connects gdpo to training frameworks.

Each adapter converts shapes and calls the estimators. Adapters do not compute statistics.
"""
