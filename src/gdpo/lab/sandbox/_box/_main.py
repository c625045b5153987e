"""Contains the entry point of the server."""

import os


def main() -> None:
    """Serve jobs from standard input until it is closed, and write results to standard output."""
    # After every fork, `threading` and `random` would spend half a millisecond to reset locks and
    # reseed random numbers. The server has a single thread, and every program gets the same seed.
    os.register_at_fork = lambda **_: None
    from ._seccomp import die_with_parent
    from ._server import serve

    die_with_parent()
    serve()
