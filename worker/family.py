"""The processes below this one, as Linux tells them: an engine's cores are among them."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

PROC = Path("/proc")


def family_is_readable() -> bool:
    """Whether this system says which process is whose child: Linux does."""
    return (PROC / "self" / "stat").is_file()


def descendants(ancestor: int) -> set[int]:
    """All processes below one, without itself."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    waiting = [ancestor]
    while waiting:
        fresh = [child for child in children.get(waiting.pop(), []) if child not in below]
        below.update(fresh)
        waiting.extend(fresh)
    return below


def kill_descendants() -> None:
    """SIGKILL every process below this one.

    Where there is no ``/proc``, the processes that Python itself started have to do.
    """
    if not family_is_readable():
        for child in multiprocessing.active_children():
            child.kill()
        return
    # Python's own helper outlives the others by itself to remove the shared memory that they leave.
    spared = {os.getpid(), getattr(resource_tracker._resource_tracker, "_pid", None)}
    stopped: set[int] = set()
    # Stopped first: one that started another before it dies would leave an orphan that is nobody's descendant.
    while fresh := descendants(os.getpid()) - stopped - spared:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended meanwhile, or changed its user
        os.kill(pid, signum)


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
