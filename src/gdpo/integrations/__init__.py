"""Connects gdpo to training frameworks.

Each adapter converts shapes and calls the estimators. No adapter computes statistics itself.
"""
