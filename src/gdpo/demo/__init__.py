"""The demo: GRPO and GDPO on a tiny tool-calling policy, side by side, on the CPU."""

from gdpo.demo._policy import PolicySettings
from gdpo.demo._report import Curve
from gdpo.demo._run import DemoResult, DemoSettings, run_demo

__all__ = ["Curve", "DemoResult", "DemoSettings", "PolicySettings", "run_demo"]
