"""Demo: trains a tiny tool-calling policy with GRPO and GDPO, side by side on the CPU."""
