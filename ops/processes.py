"""A supervised child process: in a session of its own, known by a pid file, stopped with all it started.

The pid file names the process by pid, start time and boot, so that another process (``make down``) can stop
it and a recycled pid is never signalled. Start times come from ``/proc``; where there is none (macOS) the
pid alone and its process group have to do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from schemas.errors import GleanerError

#: Seconds that a process gets after the stop signal: what a small server needs to write its files.
STOP_TIMEOUT_S = 10.0
#: Seconds that what a process started gets to leave after it: helpers notice a closed pipe within
#: milliseconds.
STRAGGLER_TIMEOUT_S = 1.0
#: Seconds after SIGKILL: only a process stuck in the kernel (a dead disk) takes longer.
KILL_TIMEOUT_S = 10.0
#: Seconds between two looks at a process that is no child of ours (children are waited for).
POLL_S = 0.02
#: Lines of a log in an error message: a traceback's end and its cause, less than a screen.
TAIL_LINES = 25
#: Bytes read from a log's end to find those lines; longer lines than 1 kB are rare.
TAIL_BYTES = TAIL_LINES * 1024

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"


class ProcessError(GleanerError):
    """A supervised process could not be started, ended by itself or can't be ended; see its log."""


@dataclass(frozen=True)
class _Identity:
    """What the pid file holds; ``start_time`` in clock ticks since boot, None without ``/proc``."""

    pid: int
    start_time: int | None
    boot_id: str | None


@dataclass(frozen=True)
class _Entry:
    """One line of the process table, as ``/proc/PID/stat`` gives it (see ``man 5 proc``)."""

    pid: int
    state: str
    parent: int
    session: int
    start_time: int

    @property
    def alive(self) -> bool:
        # A zombie holds nothing but its exit code. Under a container's init that never reaps it stays for
        # ever.
        return self.state not in "ZX"


def _read_entry(pid: int) -> _Entry | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets and may itself hold brackets and spaces.
    fields = text[text.rindex(")") + 2 :].split()
    return _Entry(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _process_table() -> dict[int, _Entry]:
    if not _PROC.is_dir():
        return {}
    entries = (_read_entry(int(folder.name)) for folder in _PROC.iterdir() if folder.name.isdigit())
    return {entry.pid: entry for entry in entries if entry is not None}


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _family(identity: _Identity) -> list[_Entry]:
    """The living members of a process's session, and their descendants: Postgres's each lead a session.

    Empty when the pid now belongs to another process: the kernel gives a pid out again only after the last
    member of its session is gone. Without ``/proc`` one entry stands for the whole process group.
    """
    if identity.start_time is None:
        return [_Entry(identity.pid, "?", 0, identity.pid, 0)] if _group_alive(identity.pid) else []
    table = _process_table()
    leader = table.get(identity.pid)
    if identity.boot_id != _boot_id() or (leader and leader.start_time != identity.start_time):
        return []
    members = {entry.pid for entry in table.values() if entry.session == identity.pid}
    grown = True
    while grown:
        children = {entry.pid for entry in table.values() if entry.parent in members}
        grown = not children <= members
        members |= children
    return [table[pid] for pid in members if table[pid].alive]


def _signal_entry(entry: _Entry, signum: int) -> None:
    """Signal exactly this process: the descriptor pins the pid while the start time is compared."""
    if sys.platform != "linux":
        os.killpg(entry.pid, signum)
        return
    try:
        descriptor = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return
    try:
        now = _read_entry(entry.pid)
        if now and now.start_time == entry.start_time:
            signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise ProcessError(f"pid {entry.pid} belongs to another user: stop it as that user") from None
    finally:
        os.close(descriptor)


def _group_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_session() -> None:
    """Wait a moment for what else is left in the session that this process leads, then SIGKILL it.

    Without ``/proc``, where it can't be told, nothing happens.

    :raises ProcessError: something survived SIGKILL for ``KILL_TIMEOUT_S``.
    """
    leader = _read_entry(os.getpid())
    if leader is None or leader.session != leader.pid:
        return
    identity = _Identity(leader.pid, leader.start_time, _boot_id())
    kill_from = time.monotonic() + STRAGGLER_TIMEOUT_S
    while others := [entry for entry in _family(identity) if entry.pid != leader.pid]:
        if time.monotonic() > kill_from + KILL_TIMEOUT_S:
            raise ProcessError(f"pid {', '.join(str(entry.pid) for entry in others)} survives SIGKILL")
        if time.monotonic() > kill_from:
            for entry in others:
                _signal_entry(entry, signal.SIGKILL)
        time.sleep(POLL_S)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Hold signals that stop us back (main thread only), so that no process is started without its pid
    file."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def record(signum: int, _frame: FrameType | None) -> None:
        caught.append(signum)

    # A handler, not a blocked mask: a mask is inherited by the child, a handler is not.
    previous = {signum: signal.signal(signum, record) for signum in _STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        for late in caught:
            signal.raise_signal(late)


class SupervisedProcess:
    """One process with its pid file and log, whether this process started it or another did.

    :param name: what messages call it.
    :param pid_file: written by :meth:`start`, removed by :meth:`stop`; its folder must exist.
    :param log_file: where stdout and stderr are appended; its folder must exist.
    :param stop_timeout_s: seconds between the stop signal and SIGKILL.
    """

    def __init__(self, name: str, *, pid_file: Path, log_file: Path, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        self.name = name
        self.pid_file = pid_file
        self.log_file = log_file
        self._stop_timeout_s = stop_timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
    ) -> None:
        """Start ``command`` in a session of its own, so that a Ctrl-C in the terminal doesn't reach it.

        :param env: the whole environment; None inherits this process's.
        :param user: user id to run as, with ``group`` and no further groups; None keeps this process's.
        :raises ProcessError: it runs already, or can't be executed.
        """
        if self.running():
            raise ProcessError(f"{self.name} already runs with pid {self.pid}")
        self.stop()  # what an earlier one left when it died: an engine's process keeps its memory
        with self.log_file.open("ab") as log, _signals_deferred():
            self._log_start = log.tell()
            try:
                self._child = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                    user=user,
                    group=group,
                    extra_groups=None if user is None else [],
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise ProcessError(f"{self.name} can't be started: {error}") from error
            entry = _read_entry(self._child.pid)
            self._remember(_Identity(self._child.pid, entry.start_time if entry else None, _boot_id()))

    @property
    def pid(self) -> int | None:
        """The pid while it runs, else None."""
        identity = self._identity()
        return identity.pid if identity and self.running() else None

    @property
    def exit_code(self) -> int | None:
        """How a process that this object started ended (negative: by that signal); None if unknown."""
        return self._child.poll() if self._child else None

    def running(self) -> bool:
        """Whether the process itself runs; what it started may outlive it until :meth:`stop`."""
        if self._child is not None:
            return self._child.poll() is None
        identity = self._identity()
        if identity is None:
            return False
        if identity.start_time is None:
            return _group_alive(identity.pid)
        entry = _read_entry(identity.pid)
        if entry is None or identity.boot_id != _boot_id():
            return False
        return entry.alive and entry.start_time == identity.start_time

    def ended_by_itself(self) -> bool:
        """Whether it was started and has ended without :meth:`stop` or :meth:`kill`."""
        return self._identity() is not None and not self.running()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False when it still runs after ``timeout_s`` seconds."""
        if self._child is not None:
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline = time.monotonic() + timeout_s
        while self.running():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def stop(self, timeout_s: float | None = None, *, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        """Signal the process, wait, then SIGKILL what is left of it and of all it started. Safe to repeat.

        :param timeout_s: instead of its own.
        :raises ProcessError: something survived SIGKILL for ``KILL_TIMEOUT_S``.
        """
        identity = self._identity()
        if identity is None:
            return
        # Taken before the signal: once the process is gone, its descendants can't be told from others.
        family = _family(identity)
        straggler_timeout_s = STRAGGLER_TIMEOUT_S
        if self.running():
            # Once, and it alone: two tell a worker not to take its time.
            if identity.start_time is None:
                os.kill(identity.pid, stop_signal)
            else:
                for entry in family:
                    if entry.pid == identity.pid:
                        _signal_entry(entry, stop_signal)
            if not self.wait(self._stop_timeout_s if timeout_s is None else timeout_s):
                straggler_timeout_s = 0.0
        if not self._gone(identity, family, straggler_timeout_s):
            self._kill(identity, family)
        self._forget()

    def kill(self) -> None:
        """SIGKILL the process and all it started, at once.

        :raises ProcessError: something survived SIGKILL for ``KILL_TIMEOUT_S``.
        """
        identity = self._identity()
        if identity is not None:
            self._kill(identity, _family(identity))
            self._forget()

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log, none older than this object's :meth:`start`; empty without a log."""
        try:
            with self.log_file.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _gone(self, identity: _Identity, family: list[_Entry], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._survivors(identity, family):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _survivors(self, identity: _Identity, family: list[_Entry]) -> list[_Entry]:
        if self._child is not None:
            self._child.poll()  # reap, or our own zombie would keep its group in being
        if identity.start_time is None:
            return _family(identity)
        known = {entry.pid: entry for entry in [*family, *_family(identity)]}
        now = (_read_entry(pid) for pid in known)
        return [e for e in now if e and e.alive and e.start_time == known[e.pid].start_time]

    def _kill(self, identity: _Identity, family: list[_Entry]) -> None:
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while survivors := self._survivors(identity, family):
            if time.monotonic() >= deadline:
                pids = ", ".join(str(entry.pid) for entry in survivors)
                raise ProcessError(f"{self.name}: pid {pids} survives SIGKILL; is a disk or a device stuck?")
            # Again and again: a process may have forked between the look at the table and the signal.
            for entry in survivors:
                _signal_entry(entry, signal.SIGKILL)
            time.sleep(POLL_S)

    def _identity(self) -> _Identity | None:
        try:
            return _Identity(**json.loads(self.pid_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            # Cut short by a full disk or written by something else: it names no process that we may signal.
            return None

    def _remember(self, identity: _Identity) -> None:
        fresh = self.pid_file.with_name(self.pid_file.name + ".new")
        fresh.write_text(json.dumps(asdict(identity)) + "\n")
        fresh.replace(self.pid_file)

    def _forget(self) -> None:
        self.pid_file.unlink(missing_ok=True)
        if self._child is not None:
            self._child.wait()  # it is dead: this only reaps it
            self._child = None
