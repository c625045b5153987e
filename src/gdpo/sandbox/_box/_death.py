"""How the server tells the grader of a program's end."""

import struct

DEATH = struct.Struct("=i?dq")
"""Wait status, whether it had to be killed, processor seconds, memory in KiB."""
