"""`gdpo demo`."""

from pathlib import Path


def demo(
    *, start: str = "rare", seed: int = 1, steps: int = 150, output: Path | None = None
) -> int:
    """Train a tiny policy with GRPO and with GDPO side by side, on the CPU (2 to 4 minutes).

    The task is tool calling with two rewards, format and correctness. Nothing is downloaded. The
    demo uses the same rewards and training code as `gdpo train`, but trains a toy model. The demo
    ends with a table of both rewards, a report and a plot.

    Args:
        start: How often the policy uses the format before training: `rare` (in 1 % of the
            warm-start texts) or `common` (in 4 %, with a higher learning rate).
        seed: Random seed for the warm start, the requests and the sampling.
        steps: Number of optimizer steps for each estimator.
        output: Folder for all files. The folder must be empty or not exist. Default: `runs/demo`,
            or the next free name, such as `runs/demo-2`.
    """
    from gdpo._terminal import terminal
    from gdpo.lab.demo import run_demo
    from gdpo.lab.demo.run import DemoSettings

    settings = DemoSettings(start=start, seed=seed, steps=steps)
    return 1 if run_demo(terminal(), settings, output=output).failed else 0
