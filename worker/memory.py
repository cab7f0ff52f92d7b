"""Host memory of this process and its children, read from ``/proc``."""

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
GIB = 1024**3


def memory_is_readable() -> bool:
    """Whether this system says what its processes use: Linux does."""
    return (PROC / "self" / "statm").is_file()


def resident_bytes() -> int:
    """Resident bytes of this process and of all processes below it. Pages that they share count once each.

    An engine's cores are children, and most of what leaks is theirs.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    return page * sum(_resident_pages(pid) for pid in _family(os.getpid()))


def _family(ancestor: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    family: set[int] = set()
    waiting = [ancestor]
    while waiting:
        pid = waiting.pop()
        family.add(pid)
        waiting.extend(child for child in children.get(pid, []) if child not in family)
    return family


def _processes() -> Iterator[tuple[int, int]]:
    """Each process with its parent."""
    for entry in os.scandir(PROC):
        if entry.name.isdecimal():
            try:
                stat = (PROC / entry.name / "stat").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            # After the name in brackets, which may hold anything: state, parent.
            yield int(entry.name), int(stat.rpartition(b")")[2].split()[1])


def _resident_pages(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_bytes().split()[1])
    except OSError:
        return 0
