"""Computes what a policy learns from each reward, from the gradients of its rollouts.

The modules of this folder import torch.
"""
