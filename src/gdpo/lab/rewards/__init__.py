"""Rewards for programs, which run in the sandbox."""
