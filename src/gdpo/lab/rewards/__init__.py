"""Rewards for mathematics and for programs. They need the sandbox, or other extras."""
