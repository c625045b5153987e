"""What a program's process is left with: its pipes, its limits, its own system calls."""

import fcntl
import os
import resource
from collections.abc import Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

from ._seccomp import die_with_parent, install

REQUESTS, REPLIES = 3, 4
"""Where a program's process has its pipes from and to the grader."""

_STACK = 64 << 20
_SIGNALS = 1024
_MIB = 1 << 20


def confine(limits: Mapping[str, Any], fds: Sequence[int], seccomp: bytes) -> None:
    """Confine this process, for good.

    Args:
        limits: `cpu` in seconds, `memory` and `file` in bytes, `files` and `threads`, and the
            folder to run in, `scratch`. `threads` may be None: then the memory alone bounds them.
        fds: The pipes of requests and of replies; for a whole program, its input and output, too.
        seccomp: The filter to install.
    """
    os.setsid()
    die_with_parent()
    os.chdir(limits["scratch"])
    _keep(fds)
    # The first signal says what it is; a program that ignores it gets the second a second later.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))
    _limit(resource.RLIMIT_AS, limits["memory"])
    _limit(resource.RLIMIT_FSIZE, limits["file"])
    _limit(resource.RLIMIT_NOFILE, limits["files"])
    _limit(resource.RLIMIT_CORE, 0)
    # Only the soft limit: many programs raise it, and the address space bounds the stack anyway.
    resource.setrlimit(
        resource.RLIMIT_STACK, (_STACK, resource.getrlimit(resource.RLIMIT_STACK)[1])
    )
    # Timers and queued signals hold memory of the kernel, of which the user has a share.
    _limit(resource.RLIMIT_SIGPENDING, _SIGNALS)
    if limits["threads"] is not None:
        _limit(resource.RLIMIT_NPROC, limits["threads"])
    install(seccomp)


def address_space() -> int:
    """Bytes of address space that this process has mapped: found out by trial, without /proc."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle * _MIB, hard))
        try:
            mmap(-1, 4096, MAP_PRIVATE | MAP_ANONYMOUS).close()
            high = middle
        except OSError:
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return high * _MIB


def _keep(fds: Sequence[int]) -> None:
    """Put these descriptors where the program has them, and close all others beyond 0, 1 and 2."""
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in fds]
    for fd, place in zip(aside, (REQUESTS, REPLIES, 0, 1), strict=False):
        os.dup2(fd, place)
    os.closerange(REPLIES + 1, os.sysconf("SC_OPEN_MAX"))


def _limit(resource_kind: int, value: int) -> None:
    hard = resource.getrlimit(resource_kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(resource_kind, (value, value))
