"""`gdpo credit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gdpo._files import is_full
from gdpo.cli._codes import FAILED
from gdpo.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from gdpo.testing import Credit

_CAPTION = (
    "bias: difference between the mean gradient and the true gradient, as a share of the length of "
    "the true gradient, in total and for the logits of each turn. degrees: angle between them. "
    "variance: relative to turn_broadcast, only if there is no bias."
)


def credit(
    estimator: str,
    /,
    *,
    size: Annotated[int, Parameter(validator=Number(gte=2), show_default=False)] = 3,
    batch: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    any_factor: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    bias: Annotated[float, Parameter(validator=Number(gte=0), show_default=False)] = 0.0,
    output: Path | None = None,
) -> int:
    """Measure whether an estimator of advantages per turn is biased, for which reward and turn.

    Lists every group of rollouts of a small agent with up to four turns, and compares the mean
    policy gradient of the estimator with the true gradient of rewards at every turn, at single
    turns and at the end. Prints the bias as a share of the length of the true gradient, for the
    whole gradient and for the logits of each turn, and the likely reason. Nothing is trained.
    Assumes independent rollouts from the policy that is trained, and a loss that divides by a
    constant. Exits with 1 if the estimator is biased, or if drawn batches are too noisy to tell,
    and with 2 if it changes its arguments, ends the process, or takes more than 10 minutes for a
    single call.

    An estimator is a function `(rewards[prompt, sample, turn, reward], weights[reward], *,
    turns[prompt, sample])` that returns advantages `[prompt, sample, turn]` as NumPy arrays. If
    the function has the option `scales`, it gets 1 for each reward, except with `--batch`.

    Args:
        estimator: Name of an estimator for turns of gdpo, such as `turn_gdpo`, or
            `module:attribute`.
        size: Number of rollouts per group, at least 2. Default: 3.
        batch: Number of groups per batch. Use it for estimators that normalize over the batch:
            draws 400 batches with seed 0, and measures directions with sampling noise. Default:
            list all groups without sampling.
        any_factor: Compare only the directions of gradients, as `--batch` does. Default: compare
            the lengths too, unless `--batch` is given.
        bias: Accepted bias, as a share of the length of the true gradient. Default: 0, which
            accepts only rounding and sampling noise. Pass 1e-5 for advantages in single precision.
        output: Write the table to this JSON file. An existing file is replaced. Default: no file.
    """
    from gdpo._naming import find
    from gdpo._terminal import terminal
    from gdpo.advantages import TURN_ESTIMATORS
    from gdpo.cli._user_code import exits_reported, patient
    from gdpo.testing import measure_credit

    with exits_reported(), patient(f"estimator {estimator!r}") as limited:
        found = find(estimator, TURN_ESTIMATORS, "estimator for turns")
        subject = limited(found) if callable(found) else found
        measured = measure_credit(subject, size=size, batch=batch, any_factor=any_factor, bias=bias)
    if output is not None:
        _write(measured, output)
    console = terminal()
    console.print(_table(measured))
    for line in measured.notes:
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    style = "green" if measured.unbiased else "bold red"
    console.print(f"{estimator}: {measured.verdict}", style=style, markup=False, soft_wrap=True)
    return 0 if measured.unbiased else FAILED


def _write(measured: "Credit", output: Path) -> None:
    try:
        measured.write(output)
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigError(
            f"--output {output} cannot be written: {error.strerror}. Choose another file"
        ) from error


def _table(measured: "Credit") -> "Table":
    from rich.table import Table

    turns = [f"turn {turn + 1}" for turn in range(len(measured.reached))]
    table = Table(caption=_CAPTION, caption_justify="left")
    for name in ("reward", "bias", "degrees", *turns, "variance"):
        table.add_column(name, no_wrap=True)
    for name, *cells in measured.cells():
        table.add_row(name, *cells)
    return table
