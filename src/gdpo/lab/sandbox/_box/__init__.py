"""Contains the code that runs inside the sandbox, where only the standard library is available.

The server starts the grader and the program processes, and interprets neither programs nor tests. A
program process runs the untrusted code. The grader runs the tests, accepts only plain data from the
program, and builds exact builtin types from it.
"""

import os


def main() -> None:
    # After every fork, `threading` and `random` would spend half a millisecond to reset locks and
    # reseed random numbers. The server has a single thread, and every program gets the same seed.
    os.register_at_fork = lambda **_: None
    from ._confine import die_with_parent
    from ._server import serve

    die_with_parent()
    serve()
