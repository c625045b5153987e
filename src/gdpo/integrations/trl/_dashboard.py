"""Makes one chart of the influence shares of all rewards, in TensorBoard and in W&B.

trackio needs no chart: it shows keys with the same beginning together.
"""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback, WandbCallback

logger = logging.getLogger(__name__)

_BEFORE, _AFTER = "rewards/", "/influence_share"
"""What stands before and after the name of a reward in the key of its influence share."""

_CHARTS = {
    "influence share of each reward": "influence_share",
    "share of groups in which a reward is constant": "zero_variance_groups",
}
_MOST = 400
"""Maximum number of points of a line in W&B. Each chart is stored as a table."""


class Dashboard(TrainerCallback):
    """Adds the charts to the active reporters. It never ends a training.

    In TensorBoard, the charts are in the tab "Custom scalars". W&B stores a chart as a table, so it
    is drawn again whenever the number of logged steps has doubled, and at the end of the training.

    Args:
        callbacks: Callbacks of the trainer. Callbacks that are added later count too.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._steps: list[int] = []
        self._shares: dict[str, list[float | None]] = {}
        self._drawn = 0
        self._failed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Describe the charts to TensorBoard."""
        if state.is_world_process_zero:
            self._try(self._lay_out)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep the influence shares, and draw the chart in W&B if the number of steps doubled."""
        if not state.is_world_process_zero or not self._reporter(WandbCallback):
            return
        self._try(lambda: self._keep(state.global_step, kwargs.get("logs") or {}))
        if len(self._steps) >= max(8, 2 * self._drawn):
            self._try(self._draw)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the chart in W&B for the last time."""
        if state.is_world_process_zero and len(self._steps) > self._drawn:
            self._try(self._draw)

    def _try(self, draw: Callable[[], None]) -> None:
        """Call a function, and give up with a warning after the first error."""
        if self._failed:
            return
        try:
            draw()
        except Exception as error:  # noqa: BLE001 - a chart is not worth a training
            self._failed = True
            logger.warning("the chart of influence shares is left out: %s", error)

    def _reporter(self, kind: type) -> Any:
        return next((each for each in self._callbacks if isinstance(each, kind)), None)

    def _lay_out(self) -> None:
        reporter = self._reporter(TensorBoardCallback)
        if reporter is None or reporter.tb_writer is None:
            return
        charts = {
            title: ["Multiline", [rf"train/rewards/.+/{number}"]]
            for title, number in _CHARTS.items()
        }
        reporter.tb_writer.add_custom_scalars({"gdpo": charts})

    def _keep(self, step: int, logs: Mapping[str, Any]) -> None:
        shares = {name: value for key, value in logs.items() if (name := _reward_of(key))}
        if not shares:
            return
        self._steps.append(step)
        for name in shares.keys() - self._shares.keys():
            self._shares[name] = [None] * (len(self._steps) - 1)
        for name, values in self._shares.items():
            values.append(shares.get(name))

    def _draw(self) -> None:
        wandb: Any = importlib.import_module("wandb")
        if wandb.run is None or not self._steps:
            return
        every = -(-len(self._steps) // _MOST)
        kept = slice((len(self._steps) - 1) % every, None, every)  # with the last step
        names = sorted(self._shares)
        lines = [self._shares[name][kept] for name in names]
        title = next(iter(_CHARTS))
        chart = wandb.plot.line_series(self._steps[kept], lines, names, title, "step")
        wandb.log({"gdpo/influence_shares": chart, "train/global_step": self._steps[-1]})
        self._drawn = len(self._steps)


def add_dashboard(trainer: Any) -> None:
    """Add the charts of influence shares to a trainer of TRL whose metrics contain them."""
    trainer.add_callback(Dashboard(trainer.callback_handler.callbacks))


def _reward_of(key: str) -> str:
    """Return the reward of a key of an influence share, or an empty string for other keys."""
    if not (key.startswith(_BEFORE) and key.endswith(_AFTER)):
        return ""
    return key.removeprefix(_BEFORE).removesuffix(_AFTER)
