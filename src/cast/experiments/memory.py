"""Memory that does not suffice: expected of one width or one setting, and no mistake of the program."""

from __future__ import annotations


def shortage(error: BaseException) -> str:
    """The reason for a record, or "" for every other error."""
    if isinstance(error, MemoryError):
        return "out of memory"
    # torch's errors, on a GPU and on the CPU
    if type(error).__name__ == "OutOfMemoryError" or "not enough memory" in str(error):
        return f"out of memory: {str(error).splitlines()[0][:160]}"
    return ""
