"""`gdpo demo`."""

from pathlib import Path


def demo(
    *, start: str = "rare", seed: int = 1, steps: int = 150, output: Path | None = None
) -> int:
    """Train a tiny policy with GRPO and with GDPO side by side, on the CPU (2 to 4 minutes).

    The task is tool calling with two rewards, format and correctness. Nothing is downloaded. The
    demo uses the rewards and the code of `gdpo train`; the model is a toy. At the end it prints
    how both rewards developed, and writes a report and a plot.

    Args:
        start: How often the policy uses the format before training: `rare` (1 % of the warm-start
            texts have it) or `common` (4 %, and a higher learning rate).
        seed: Random seed for the requests and the sampling.
        steps: Optimizer steps of each estimator.
        output: Folder for everything. It must be empty or not exist yet. Default: `runs/demo`, or
            `runs/demo-2` and so on if that exists.
    """
    from rich.console import Console

    from gdpo.demo import run_demo
    from gdpo.demo.run import DemoSettings

    settings = DemoSettings(start=start, seed=seed, steps=steps)
    return 1 if run_demo(Console(highlight=False), settings, output=output).failed else 0
