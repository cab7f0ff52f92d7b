"""Host memory of this process and its children, read from ``/proc``."""

import os

from worker import family

GIB = 1024**3


def memory_is_readable() -> bool:
    """Whether this system says what its processes use: Linux does."""
    return (family.PROC / "self" / "statm").is_file()


def resident_bytes() -> int:
    """Resident bytes of this process and of all processes below it. Pages that they share count once each.

    An engine's cores are children, and most of what leaks is theirs.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    return page * sum(_resident_pages(pid) for pid in {os.getpid(), *family.descendants(os.getpid())})


def _resident_pages(pid: int) -> int:
    try:
        return int((family.PROC / str(pid) / "statm").read_bytes().split()[1])
    except OSError:
        return 0
