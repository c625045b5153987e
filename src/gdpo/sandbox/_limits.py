"""What one program may use."""

from dataclasses import dataclass, fields
from math import isfinite

from gdpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use over all its tests.

    It may start some hundred threads but no process, reach no network, and write to `/tmp` alone.

    Args:
        cpu_seconds: Processor time, in seconds; the kernel counts in whole ones, so the next whole
            second counts.
        wall_seconds: Time on the clock, in seconds, for a program that sleeps or waits. One that is
            still computing has its `cpu_seconds`, however long a busy machine takes for them, up to
            `longest_seconds`.
        memory_mb: Address space, in MiB, beside the interpreter's own.
        file_mb: The largest file, in MiB; all files together are bounded by the sandbox's `/tmp`.
        open_files: File descriptors, the three standard ones and the sandbox's two among them.
        output_kb: One answer to a test, or what one case of `Stdio` prints, in KiB. Where the tests
            write out longer values, answers may be as long as those.

    Raises:
        ConfigError: A limit is not a finite number above 0, or there are too few descriptors to
            start a program at all.
    """

    cpu_seconds: float = 4.0
    wall_seconds: float = 8.0
    memory_mb: int = 512
    file_mb: int = 8
    open_files: int = 64
    output_kb: int = 1024

    @property
    def longest_seconds(self) -> float:
        """Time on the clock after which every program ends, in seconds.

        It is 15 times `cpu_seconds`, but at most 60 seconds, and never less than `wall_seconds`.
        """
        return max(self.wall_seconds, min(_TIMES_AS_LONG * self.cpu_seconds, _LONGEST))

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, (int, float)) or not (isfinite(value) and value > 0):
                raise ConfigError(
                    f"limit {field.name!r} must be a finite number above 0, got {value!r}"
                )
        if self.open_files < _FEWEST_FILES:
            raise ConfigError(
                f"limit 'open_files' must be at least {_FEWEST_FILES}, got {self.open_files}: a "
                f"program holds some of them before it starts"
            )


_FEWEST_FILES = 16
_TIMES_AS_LONG = 15
_LONGEST = 60.0
