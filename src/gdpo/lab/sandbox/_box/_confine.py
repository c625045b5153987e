"""Restricts the pipes, resource use and system calls of a program's process.

A seccomp filter blocks the listed system calls. Others are allowed, because Python and its threads
need many, and those newer than the list fail with ENOSYS. The filter is the second line of defence,
after the box around all processes, which the unsafe backend lacks.
"""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

REQUESTS, REPLIES = 3, 4
"""File descriptors of the pipes on which a program reads requests and writes replies."""

_STACK = 64 << 20
_SIGNALS = 1024
_MIB = 1 << 20


def confine(limits: Mapping[str, Any], fds: Sequence[int], seccomp: bytes) -> None:
    """Confine this process permanently.

    `limits` has `cpu` in seconds, `memory` and `file` in bytes, the maximum numbers `files` and
    `threads` (None: only memory limits it), and the working folder `scratch`. `fds` are the pipes
    for requests and replies and, for a whole program, its input and output.
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

# fmt: off
# Numbers on x86_64 and aarch64. None: the machine type does not have the system call.
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # processes other than the program itself
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "kcmp": (312, 272), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the network
    "socket": (41, 198), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # resources that outlive a process, or that no limit counts
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "mknod": (133, None), "mknodat": (259, 33), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    # changes of a file's owner, mode, times or locks, which could reach files of this machine
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "flock": (73, 32),
    # asynchronous requests, which share one limit for the whole machine
    "io_setup": (206, 0),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "fanotify_init": (300, 262),
    "inotify_init": (253, None), "inotify_init1": (294, 26),
    # kernel facilities in which vulnerabilities are common, or that change the system
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "userfaultfd": (323, 282),
    "personality": (135, 92), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "syslog": (103, 116), "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42), "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None),
    "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "vhangup": (153, 58), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
}

_ASKED: dict[str, tuple[int, int]] = {
    # calls whose arguments the filter checks
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131),
    "prctl": (157, 167), "prlimit64": (302, 261), "fcntl": (72, 25), "ioctl": (16, 29),
    "socketpair": (53, 199), "get_robust_list": (274, 100),
}
# fmt: on

_NEWEST = 450
"""Number of the newest system call in this list. From 424 on, all machine types use the same
numbers."""


def program_filter() -> bytes:
    """Return a template for this machine's filter. `install` fills in the process id."""
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
        (_ABOVE, 0, 1, _NEWEST),
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    for name, numbers in _ASKED.items():
        question = _QUESTIONS[name]
        steps += [(_EQUAL, 0, len(question), numbers[column]), *question]
    for numbers in _FORBIDDEN.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(template: bytes) -> None:
    """Install the filter permanently for this process and its threads."""
    own = struct.pack("=I", os.getpid())
    code = template.replace(struct.pack("=I", _PLACEHOLDER), own)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, None)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def die_with_parent() -> None:
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
