"""`gdpo demo`."""

from pathlib import Path


def demo(*, seed: int = 1, steps: int = 100, output: Path | None = None) -> int:
    """See GRPO and GDPO train a tiny policy side by side, on the CPU (about 2 minutes).

    The task is tool calling, and nothing is downloaded. The rewards and the code are those of
    `gdpo train`; the model is a toy. One seed: it shows how the two behave, not which is better.

    Args:
        seed: Decides the requests and the sampling. 1 behaves as most do.
        steps: Optimizer steps of each estimator.
        output: A new folder for everything. Left out: `runs/demo`, or `runs/demo-2` and so on.
    """
    from rich.console import Console

    from gdpo.demo import run_demo
    from gdpo.demo.run import DemoSettings

    settings = DemoSettings(seed=seed, steps=steps)
    return 1 if run_demo(Console(highlight=False), settings, output=output).failed else 0
