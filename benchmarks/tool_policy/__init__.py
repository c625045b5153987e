"""A tiny policy for benchmarks on the CPU, and tool-calling problems that it can learn."""
