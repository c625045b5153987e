"""The stability map: the share of seeds that learn a reward, over learning rate and group size."""

from dataclasses import dataclass

from gdpo.lab.evaluation._intervals import share

REWARD = "format"
_LEARNING_RATES = (2e-4, 5e-4, 1e-3)
_SAMPLES = (4, 8)


@dataclass(frozen=True)
class Place:
    """One cell of the map."""

    learning_rate: float
    samples: int

    @property
    def name(self):
        """The name of the cell's folder."""
        return f"map-{self.learning_rate:g}-{self.samples}"


def map_cells():
    """Return all cells of the map."""
    return [Place(rate, samples) for samples in _SAMPLES for rate in _LEARNING_RATES]


def reached(comparison, label):
    """Return how many runs of an estimator have the reward at the end, and the number of runs.

    A run that reached the reward and lost it again does not count.
    """
    outcome = comparison.outcome(label, REWARD)
    measured = next(r for r in comparison.experiment.rewards if r.name == REWARD)
    threshold = comparison.experiment.threshold(measured)
    return int((outcome.finals >= threshold).sum()), len(outcome.finals)


def map_table(cells, labels):
    """Return a Markdown table with a line for each cell and a column for each estimator."""
    lines = [
        f"| learning rate | samples | {' | '.join(labels)} |",
        f"|---|---|{'---|' * len(labels)}",
    ]
    for place, comparison in cells.items():
        counts = [reached(comparison, label) for label in labels]
        shown = " | ".join(f"{count} of {runs}" for count, runs in counts)
        lines.append(f"| {place.learning_rate:g} | {place.samples} | {shown} |")
    return "\n".join(lines)


def draw_map(path, cells, labels):
    """Draw one panel per estimator: the share of seeds with its 95 % confidence interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(labels), 2.6), dpi=150, layout="constrained")
    for axis, label in zip(figure.subplots(1, len(labels), sharey=True), labels, strict=True):
        for x, rate in enumerate(_LEARNING_RATES):
            for y, samples in enumerate(_SAMPLES):
                count, runs = reached(cells[Place(rate, samples)], label)
                estimate = share([1.0] * count + [0.0] * (runs - count))
                _square(axis, x, y, estimate)
        axis.set_title(label, fontsize=9)
        axis.set_xticks(range(len(_LEARNING_RATES)), [f"{rate:g}" for rate in _LEARNING_RATES])
        axis.set_yticks(range(len(_SAMPLES)), [str(samples) for samples in _SAMPLES])
        axis.set_xlabel("learning rate", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.set_xlim(-0.5, len(_LEARNING_RATES) - 0.5)
        axis.set_ylim(-0.5, len(_SAMPLES) - 0.5)
    figure.axes[0].set_ylabel("samples", fontsize=8)
    figure.suptitle(f"share of seeds with {REWARD} at 80 % at the end", fontsize=10)
    figure.savefig(path)


def _square(axis, x, y, estimate):
    from matplotlib import colormaps

    colour = colormaps["cividis"](estimate.mean)
    axis.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, color=colour, linewidth=0)
    dark = estimate.mean < 0.5
    axis.text(x, y + 0.08, f"{estimate.mean:.0%}", ha="center", color="w" if dark else "k")
    interval = f"{estimate.low:.0%} to {estimate.high:.0%}"
    axis.text(x, y - 0.25, interval, ha="center", fontsize=6, color="w" if dark else "k")
