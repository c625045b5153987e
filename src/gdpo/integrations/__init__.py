"""Adapters for training frameworks. They convert shapes and call the estimators.

No adapter computes statistics itself.
"""
