"""What a run is launched on."""

from dataclasses import dataclass

from gdpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes of a cluster, each with as many GPUs."""

    nodes: int
    gpus: int
    """Of each node."""

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus", self.gpus)):
            if count < 1:
                raise ConfigError(f"{option} must be 1 or more, got {count}")

    @property
    def processes(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus
