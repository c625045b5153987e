"""Demo: trains a tiny tool-calling policy with GRPO and GDPO, side by side on the CPU."""

from gdpo.lab.demo.run import run_demo

__all__ = ["run_demo"]
