"""The machine of a soak: Postgres and Valkey of its own, brief settings, and commands that run on them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from pydantic import SecretStr
from redis.exceptions import RedisError

import ops
from ops.service import free_port
from ops.services import Postgres, Valkey
from schemas.database import Connection, connect
from schemas.env_files import ENV_PREFIX
from schemas.errors import GleanerError
from schemas.settings import Settings

T = TypeVar("T")

#: Settings that are shorter than their defaults, so that half an hour sees as many leases run out, passes of the
#: reconciler and stalls as days do. Everything else is as in production.
BRIEF = {"lease_s": 5, "reconcile_s": 1, "shutdown_s": 5, "stall_s": 10}
MODEL = "soak"
#: Chunks in flight at once in each worker: the default for chunks of 256.
SLOTS = 4
#: Seconds until Postgres or the broker, both on this machine, must be back after a fault. Recovery from a crash takes
#: one or two; outages that follow each other take longer.
BACK_WITHIN_S = 60.0
#: Seconds for a command of the CLI once.
COMMAND_S = 60.0
#: Seconds between two tries while something is away.
RETRY_S = 0.2
#: What says that a service is away.
AWAY = (psycopg.Error, RedisError, GleanerError, OSError)


class CommandFailed(GleanerError):
    """A command of the CLI failed; the message is what it said."""


class Host:
    """Services, settings and the environment of every process of a soak."""

    def __init__(self, folder: Path, logs: Path) -> None:
        """
        :param folder: for everything; whoever made it removes it.
        :param logs: for one log a process; must exist.
        """
        self.folder = folder
        self.logs = logs
        # Ports of their own for good: a server that was down for a moment must be found again.
        self.postgres = Postgres(folder / "postgres", port=free_port(), log_file=logs / "postgres.log")
        self.valkey = Valkey(folder / "valkey", port=free_port(), log_file=logs / "valkey.log")
        self._settings: dict[str, Any] = {
            "database_url": self.postgres.url,
            "broker_url": self.valkey.url,
            "engine": "stub",
            "model": MODEL,
            "worker_slots": SLOTS,
            **BRIEF,
        }
        secret = {key: SecretStr(self._settings[key]) for key in ("database_url", "broker_url")}
        self.settings = Settings(**(self._settings | secret))

    def start(self) -> None:
        """Start the services and create the tables.

        :raises GleanerError: a service or a command failed.
        """
        self.postgres.start()
        self.valkey.start()
        self.command("db", "upgrade")

    def remove(self) -> None:
        """Stop the services and delete their data."""
        self.valkey.remove()
        self.postgres.remove()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process: this one's, but for settings that whoever calls has made."""
        own = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
        # Processes run in the soak's folder, where no env file lies, and import what this one imports.
        path = str(Path(str(ops.__file__)).parents[1])
        given = {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in self._settings.items()}
        return own | given | {"PYTHONPATH": path}

    def connect(self) -> Connection:
        """A connection to Postgres.

        :raises DatabaseUnavailable: while it is away.
        """
        return connect(self.settings, "soak")

    def command(self, *arguments: str) -> str:
        """Run a ``producer`` command once and return its stdout.

        :raises CommandFailed: it failed.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-m", "producer", *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self.environment,
                cwd=self.folder,
                timeout=COMMAND_S,
                start_new_session=True,  # a Ctrl-C in the terminal is the soak's
            )
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"`producer {' '.join(arguments)}` did not end in {COMMAND_S:.0f} s") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise CommandFailed(f"`producer {' '.join(arguments)}` failed (exit {done.returncode}): {said}")
        return done.stdout

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask Postgres, again while it is away.

        :raises GleanerError: (or psycopg's) when it stays away for ``BACK_WITHIN_S``.
        """

        def once() -> T:
            with self.connect() as connection:
                return question(connection)

        return patiently(once)

    def insist(self, *arguments: str) -> dict[str, Any]:
        """Run a ``producer`` command with ``--json``, again while a service is away, and return its object.

        :raises CommandFailed: it fails still after ``BACK_WITHIN_S``.
        """
        answer: dict[str, Any] = patiently(lambda: json.loads(self.command(*arguments, "--json")))
        return answer


def patiently(call: Callable[[], T], within_s: float = BACK_WITHIN_S) -> T:
    """Call until it succeeds, while it fails as something does whose service is away."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except AWAY:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_S)
