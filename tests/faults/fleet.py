"""The workers and reconcilers of a test under a supervisor, as systemd keeps them with ``Restart=always``."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

#: Every process of a test gets these: brief enough that a lease runs out and is taken over within a few seconds.
BRIEF = {
    "ENGINE": "stub",
    "LEASE_S": "3",
    "RECONCILE_S": "0.4",
    "WRITE_INTERVAL_S": "0.2",
    "SHUTDOWN_S": "10",
    "DATABASE_CONNECT_TIMEOUT_S": "3",
}
#: Seconds that anything here may take: many times what it does on an idle machine.
WAIT_S = 90.0
#: Seconds between two looks at something that is waited for.
LOOK_S = 0.02
#: Seconds until what ended is started again: systemd's default RestartSec.
RESTART_S = 0.1


def eventually(holds: Callable[[], Any], what: str, within_s: float = WAIT_S, look_s: float = LOOK_S) -> Any:
    """Look until something holds, and return it."""
    deadline = time.monotonic() + within_s
    while not (value := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {within_s:.0f} s in vain: {what}")
        time.sleep(look_s)
    return value


def pass_time(seconds: float) -> None:
    """A delay that is part of a fault: how long it lasts, or the moment when it strikes."""
    time.sleep(seconds)


class Member:
    """One process of the fleet, in as many lives as it takes."""

    def __init__(self, name: str, command: list[str], variables: Mapping[str, str], log_file: Path) -> None:
        self.name = name
        #: The exit codes of its lives so far (negative: by that signal).
        self.endings: list[int] = []
        self._command = command
        self._variables = variables
        self._log_file = log_file
        self._lock = threading.Lock()
        self._kept = True
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def keep(self) -> None:
        """Start it again if it has ended. For the supervisor."""
        with self._lock:
            if self._kept and self._process.poll() is not None:
                self.endings.append(self._process.returncode)
                self._process = self._start()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to its present life."""
        with self._lock:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """End its present life without warning, and wait until the supervisor has begun the next."""
        lives = len(self.endings)
        self.send(signal.SIGKILL)
        eventually(lambda: len(self.endings) > lives, f"{self.name} is started again")

    def lose(self, signum: signal.Signals = signal.SIGKILL) -> int:
        """End it for good, as when its host is gone. Returns its exit code."""
        with self._lock:
            self._kept = False
            self._process.send_signal(signum)
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"{self.name} does not end at {signum.name}")
        self.endings.append(code)
        return code

    def find(self) -> None:
        """Start what was lost: its host is back."""
        with self._lock:
            self._process = self._start()
            self._kept = True

    def close(self) -> None:
        """End it, whatever it does. For the end of a test."""
        with self._lock:
            self._kept = False
            self._process.kill()
            self._process.wait()

    @property
    def log(self) -> str:
        """What it has said in all its lives."""
        return self._log_file.read_text(errors="replace")


class Fleet:
    """Starts workers with the stub engine, and reconcilers, and starts again whatever of it ends."""

    def __init__(self, folder: Path) -> None:
        """:param folder: for the logs."""
        self.members: list[Member] = []
        self._folder = folder
        self._numbers = count(1)
        self._closed = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._supervisor.start()

    def worker(
        self,
        name: str | None = None,
        *,
        slots: int = 2,
        prefix: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Member:
        """Start a worker.

        :param prefix: what its command is run by.
        :param environment: further variables.
        :param settings: variables ``GLEANER_*`` of its own, in lower case.
        """
        name = name or f"w{next(self._numbers)}"
        command = ["worker", "start", "--name", name, "--slots", str(slots)]
        return self._add(name, command, prefix, environment, settings)

    def reconciler(self, **settings: Any) -> Member:
        """Start a reconciler."""
        return self._add(f"reconciler-{next(self._numbers)}", ["producer", "reconcile"], None, None, settings)

    def _add(
        self,
        name: str,
        command: list[str],
        prefix: list[str] | None,
        environment: Mapping[str, str] | None,
        settings: Mapping[str, Any],
    ) -> Member:
        given = {f"GLEANER_{key.upper()}": str(value) for key, value in settings.items()}
        whole = [*(prefix or []), sys.executable, "-m", *command]
        member = Member(name, whole, {**given, **(environment or {})}, self._folder / f"{name}.log")
        self.members.append(member)
        return member

    def _supervise(self) -> None:
        while not self._closed.wait(RESTART_S):
            for member in list(self.members):
                member.keep()

    def close(self) -> None:
        """End everything."""
        self._closed.set()
        self._supervisor.join()
        for member in self.members:
            member.close()
