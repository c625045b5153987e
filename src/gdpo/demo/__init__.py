"""Demo: GRPO and GDPO on a tiny tool-calling policy, side by side on the CPU."""

from gdpo.demo.run import run_demo

__all__ = ["run_demo"]
