"""The way into the server."""

import os


def main() -> None:
    """Serve jobs from standard input until it is closed; the answers go to standard output."""
    # `threading` and `random` would do half a millisecond's work after every fork: for locks of
    # other threads, of which there are none, and to make random numbers differ, which here are the
    # same for every program.
    os.register_at_fork = lambda **_: None
    from ._seccomp import die_with_parent
    from ._server import serve

    die_with_parent()
    serve()
