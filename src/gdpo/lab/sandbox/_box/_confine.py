"""Restricts the pipes, resource use and system calls of a program's process."""

import fcntl
import os
import resource
from collections.abc import Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

from ._seccomp import die_with_parent, install

REQUESTS, REPLIES = 3, 4
"""File descriptors of the pipes on which a program reads requests and writes replies."""

_STACK = 64 << 20
_SIGNALS = 1024
_MIB = 1 << 20


def confine(limits: Mapping[str, Any], fds: Sequence[int], seccomp: bytes) -> None:
    """Confine this process permanently.

    `limits` has `cpu` in seconds, `memory` and `file` in bytes, the maximum numbers `files` and
    `threads`, and the working folder `scratch`. If `threads` is None, only memory limits the number
    of threads. `fds` are the pipes for requests and replies and, for a whole program, its input and
    output.
    """
    os.setsid()
    die_with_parent()
    os.chdir(limits["scratch"])
    # The pipes move to their fixed numbers. All others except 0, 1 and 2 are closed.
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in fds]
    for fd, place in zip(aside, (REQUESTS, REPLIES, 0, 1), strict=False):
        os.dup2(fd, place)
    os.closerange(REPLIES + 1, os.sysconf("SC_OPEN_MAX"))
    # The soft limit sends SIGXCPU, which identifies the cause. If the program ignores it, the hard
    # limit kills the program one second later.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))
    _limit(resource.RLIMIT_AS, limits["memory"])
    _limit(resource.RLIMIT_FSIZE, limits["file"])
    _limit(resource.RLIMIT_NOFILE, limits["files"])
    _limit(resource.RLIMIT_CORE, 0)
    # Set only the soft limit, because many programs raise it. The address space limits the stack.
    resource.setrlimit(
        resource.RLIMIT_STACK, (_STACK, resource.getrlimit(resource.RLIMIT_STACK)[1])
    )
    # Timers and queued signals use kernel memory, which counts towards a limit of the user.
    _limit(resource.RLIMIT_SIGPENDING, _SIGNALS)
    if limits["threads"] is not None:
        _limit(resource.RLIMIT_NPROC, limits["threads"])
    install(seccomp)


def address_space() -> int:
    """Measure the address space of this process, in bytes, without access to /proc."""
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


def _limit(resource_kind: int, value: int) -> None:
    hard = resource.getrlimit(resource_kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(resource_kind, (value, value))
