"""Builds and installs the seccomp filter that blocks system calls in a program's process.

System calls that are not listed are allowed, because Python and its threads need many system calls.
System calls newer than the list fail with ENOSYS. The filter is the second line of defence. The
first line of defence is the box around all processes, which the unsafe backend does not have.
"""

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress

from ._syscalls import ASKED, FORBIDDEN, NEWEST

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS

# Classic BPF: load a word, compare, test bits, mask, return.
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_FOREIGN_ABI = 0x40000000 - 1

_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SCHED_CORE = 1, 4, 62
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_F_SETLK, _F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW = 6, 7, 37, 38
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026
_FS_IOC_SETFLAGS = 0x40086602
_FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX = 0x8901, 0x8902, 0x5412, 0x541C
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

_PLACEHOLDER = 0x7E57ED1D
"""Placeholder for the program's process id, which is known only when the filter is installed."""

_Step = tuple[int, int, int, int]


def program_filter() -> bytes:
    """Return a template for this machine's filter. `install` fills in the process id.

    Raises:
        OSError: If the machine is neither x86_64 nor aarch64.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(
            errno.ENOSYS,
            f"the sandbox does not support the machine type {platform.machine()!r}. Supported: "
            f"{', '.join(_MACHINES)}",
        )
    column, audit = _MACHINES[platform.machine()]
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, _FOREIGN_ABI),
        (_RETURN, 0, 0, _KILL),
        (_ABOVE, 0, 1, NEWEST),
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    for name, numbers in ASKED.items():
        question = _QUESTIONS[name]
        steps += [(_EQUAL, 0, len(question), numbers[column]), *question]
    for numbers in FORBIDDEN.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(template: bytes) -> None:
    """Install the filter permanently for this process and its threads.

    Raises:
        OSError: If the kernel refuses the filter.
    """
    own = struct.pack("=I", os.getpid())
    code = template.replace(struct.pack("=I", _PLACEHOLDER), own)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, None)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent exits."""
    _prctl(_PR_SET_PDEATHSIG, 9, None)


def keep_private() -> None:
    """Prevent other processes from reading the memory of this process and its children."""
    # sandlock forbids this call, because its supervisor reads memory. A sandlock box has no /proc.
    with suppress(PermissionError):
        _prctl(_PR_SET_DUMPABLE, 0, None)


def _prctl(option: int, value: int, pointer: bytes | None) -> None:
    if _libc.prctl(option, value, pointer, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [
    ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong,
]  # fmt: skip


def _argument(index: int) -> _Step:
    # Load the low half. All checked arguments have 32 bits, and both machines are little-endian.
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _only(index: int, *allowed: int) -> list[_Step]:
    """Return steps that allow a call only with these values of an argument."""
    tests = [(_EQUAL, len(allowed) - i, 0, value) for i, value in enumerate(allowed)]
    return [_argument(index), *tests, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]


def _not(index: int, *refused: int) -> list[_Step]:
    """Return steps that refuse a call with these values of an argument, and otherwise allow it."""
    tests = [(_EQUAL, len(refused) - i, 0, value) for i, value in enumerate(refused)]
    return [_argument(index), *tests, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]


_QUESTIONS: dict[str, list[_Step]] = {
    "clone": [
        _argument(0),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ],
    # A filter cannot follow the pointer to the flags. With ENOSYS, the C library falls back to
    # clone.
    "clone3": [(_RETURN, 0, 0, _UNKNOWN)],
    "kill": _only(0, _PLACEHOLDER),
    "tgkill": _only(0, _PLACEHOLDER),
    "prctl": _not(0, _PR_SET_PDEATHSIG, _PR_SCHED_CORE),
    "prlimit64": _only(0, 0, _PLACEHOLDER),
    # For a different process, the call would return an address in that process.
    "get_robust_list": _only(0, 0, _PLACEHOLDER),
    # The kernel sends signals to the owner of a file, which could be any process. A lock on a
    # read-only file would affect the whole machine.
    "fcntl": _not(
        1,
        _F_SETLK,
        _F_SETLKW,
        _F_SETOWN,
        _F_SETSIG,
        _F_SETOWN_EX,
        _F_OFD_SETLK,
        _F_OFD_SETLKW,
        _F_SETLEASE,
        _F_NOTIFY,
    ),
    "ioctl": _not(1, _FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS),
    # asyncio needs a pair of stream sockets. A datagram pair could send to other sockets.
    "socketpair": [
        _argument(0),
        (_EQUAL, 0, 4, _AF_UNIX),
        _argument(1),
        (_MASK, 0, 0, _SOCK_TYPE_MASK),
        (_EQUAL, 0, 1, _SOCK_STREAM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ],
}
