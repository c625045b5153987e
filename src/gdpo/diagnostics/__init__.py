"""What a reward array says about a batch."""

from gdpo.diagnostics._groups import dead_groups, group_std, silent_groups

__all__ = ["dead_groups", "group_std", "silent_groups"]
