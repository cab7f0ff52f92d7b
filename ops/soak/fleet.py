"""The processes under test: workers and a reconciler, each started again at once when it ends, as systemd would."""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from ops.processes import SupervisedProcess
from ops.soak.host import Host
from ops.soak.workload import POISON
from schemas.queue import create_app

#: Seconds between two looks at what has ended; systemd waits as long before it starts a service anew.
LOOK_S = 0.1
#: Seconds until all workers must consume: each imports for two, with the others beside it.
START_WITHIN_S = 60.0
#: Seconds that one ping waits for answers.
PING_S = 1.0
#: Seconds beyond GLEANER_SHUTDOWN_S that a worker gets at the end of the soak.
STOP_GRACE_S = 5.0


class Member:
    """One process of the fleet, whichever number its present start has."""

    def __init__(self, name: str, arguments: list[str], host: Host, chance: Callable[[], dict[str, str]]) -> None:
        """:param chance: variables that are drawn anew for each start."""
        self.name = name
        self._command = [sys.executable, "-m", *arguments]
        self._host = host
        self._chance = chance
        self._armed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._process = SupervisedProcess(
            name, pid_file=host.folder / f"{name}.pid", log_file=host.logs / f"{name}.log"
        )
        #: How each start ended: exit codes (negative: by that signal). One fewer than starts while it runs.
        self.exits: list[int | None] = []
        self.starts = 0

    def arm(self, **variables: str) -> None:
        """Give the next start these variables, and only that one."""
        self._armed = variables

    def start(self) -> None:
        """Start it."""
        with self._lock:
            armed, self._armed = self._armed, {}
            environment = self._host.environment | self._chance() | armed
            self._process.start(self._command, env=environment, cwd=self._host.folder)
            self.starts += 1

    def restart_if_ended(self) -> None:
        """Note how it ended and start it again, if it has ended."""
        if not self._process.running():
            self.exits.append(self._process.exit_code)
            self.start()

    def signal(self, signum: signal.Signals) -> bool:
        """Send a signal. False if it does not run just now."""
        with self._lock:  # so that no process is signalled that came after it
            pid = self._process.pid
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
                    return True
        return False

    def stop(self, timeout_s: float) -> None:
        """Wait for its end; after so many seconds make one. It has been told to leave."""
        self._process.wait(timeout_s)
        self._process.kill()


class Fleet:
    """All processes under test and their supervisor."""

    def __init__(self, host: Host, workers: int, rows_per_s: float, rng: random.Random) -> None:
        """:param rows_per_s: of each worker's engine."""

        def chance() -> dict[str, str]:
            return {
                "GLEANER_STUB_ROWS_PER_S": str(rows_per_s),
                "GLEANER_STUB_POISON": POISON,
                "GLEANER_STUB_POISON_KILLS": rng.choice(("engine", "process")),
            }

        self._host = host
        #: Of all engines together.
        self.rows_per_s = rows_per_s * workers
        self.workers = [
            Member(name, ["worker", "start", "--name", name], host, chance)
            for name in (f"w{number}" for number in range(1, workers + 1))
        ]
        self.reconciler = Member("reconciler", ["producer", "reconcile", "--json"], host, dict)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="fleet", daemon=True)

    def start(self) -> None:
        """Start every process and its supervision, and wait until all workers consume.

        :raises TimeoutError: some do not.
        """
        for member in self._members():
            member.start()
        self._thread.start()
        deadline = time.monotonic() + START_WITHIN_S
        with create_app(self._host.settings) as app:
            while len(app.control.ping(timeout=PING_S, limit=len(self.workers))) < len(self.workers):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the workers do not answer after {START_WITHIN_S:.0f} s: see their logs")

    def stop(self) -> None:
        """End every process, stopped ones too. Safe to repeat."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for signum in (signal.SIGCONT, signal.SIGTERM):  # to all, so that they leave together
            for member in self._members():
                member.signal(signum)
        for member in self._members():
            member.stop(self._host.settings.shutdown_s + STOP_GRACE_S)

    def exits(self) -> dict[str, int]:
        """How often workers ended with each exit code."""
        return dict(Counter(str(code) for worker in self.workers for code in worker.exits))

    def _members(self) -> list[Member]:
        return [*self.workers, self.reconciler]

    def _supervise(self) -> None:
        while not self._ending.wait(LOOK_S):
            for member in self._members():
                member.restart_if_ended()
