"""What the embedded services share: a server process on 127.0.0.1, its data folder, port and passwords."""

import importlib.util
import json
import os
import secrets
import shutil
import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from ops.processes import SupervisedProcess
from schemas.errors import GleanerError
from schemas.extras import install

HOST = "127.0.0.1"
#: Seconds until a server must answer. Both take under a second, and longer after a crash.
START_TIMEOUT_S = 60.0
#: Seconds between two tries to connect while a server starts.
READY_POLL_S = 0.05
#: Seconds a stopping server may take to write its files before SIGKILL, which their logs survive.
STOP_TIMEOUT_S = 20.0
#: Ports are drawn from below Linux's ephemeral range (32768 up). In it a client that reconnects to a
#: stopped server can be given the server's own port as its source, connect to itself, and keep the server
#: from starting again.
PORT_RANGE = range(20_000, 30_000)
#: Draws before giving up; each fails only if something listens on that port.
PORT_DRAWS = 100
#: Bytes of randomness in a generated password: 192 bits, 32 characters, none that a URL must quote.
PASSWORD_BYTES = 24
#: The folder itself may be passed through by the service's user, not listed.
FOLDER_MODE = 0o711
SECRET_MODE = 0o600


class ServiceError(GleanerError):
    """An embedded service could not be installed, started or reached; the message names the remedy."""


def package_folder(package: str) -> Path:
    """The folder of an installed package, found without importing it.

    :raises ServiceError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServiceError(f"the package {package} is not installed: {install(package.replace('_', '-'))}")
    return Path(spec.origin).parent


def clean_environment() -> dict[str, str]:
    """Nothing of this process's: PGPORT, PGDATA and the like would change what a server does."""
    return {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}


def port_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As the servers do: connections of an earlier server in TIME_WAIT don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A random port of 127.0.0.1 that nothing listens on.

    :raises ServiceError: none was found.
    """
    for _ in range(PORT_DRAWS):
        port = secrets.choice(PORT_RANGE)
        if port_free(port):
            return port
    raise ServiceError(f"no free port from {PORT_RANGE.start} to {PORT_RANGE.stop - 1} on {HOST}")


def new_password() -> str:
    """A password of letters, digits, ``-`` and ``_``."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def write_secret(path: Path, text: str) -> None:
    """Replace ``path`` by a file that only this user can read, at no moment half written."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    fresh.replace(path)


class Service(ABC):
    """A server with its data folder; also a context manager that starts and stops it.

    :param data_dir: created when missing.
    :param port: 0 takes the port remembered in the data folder, else a free one, and remembers it.
    :param log_file: where the server's output is appended; default ``server.log`` in the data folder.
    """

    name: str

    def __init__(self, data_dir: Path, *, port: int, log_file: Path | None) -> None:
        self.data_dir = data_dir.absolute()
        if not self.data_dir.exists():
            self.data_dir.mkdir(parents=True)
            self.data_dir.chmod(FOLDER_MODE)
        self._memory = self.data_dir / "service.json"
        self._given_port = port
        self.process = SupervisedProcess(
            self.name,
            pid_file=self.data_dir / "server.pid",
            log_file=log_file or self.data_dir / "server.log",
        )

    @property
    def port(self) -> int:
        """The port: given, or remembered from the first start.

        :raises ServiceError: never started.
        """
        port = self._given_port or self._remembered().get("port")
        if not isinstance(port, int):
            raise ServiceError(f"{self.name} in {self.data_dir} was never started")
        return port

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL, with password, for Gleaner's settings."""

    def running(self) -> bool:
        """Whether the server's process runs."""
        return self.process.running()

    def start(self) -> None:
        """Start the server and wait until it answers; nothing to do when it runs.

        :raises ServiceError: package missing, port taken, or no answer within ``START_TIMEOUT_S``.
        """
        if self.running():
            return
        self._choose_port()
        try:
            self._launch()
            self._wait_ready()
        except BaseException:
            self.process.stop(STOP_TIMEOUT_S)
            raise

    def stop(self) -> None:
        """Stop the server, keeping its data; nothing of it is left running. Safe to repeat."""
        self.process.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the server and its children, as a crash would."""
        self.process.kill()

    def remove(self) -> None:
        """Stop the server and delete its data folder, passwords and all."""
        self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _launch(self) -> None: ...

    @abstractmethod
    def _answers(self) -> str | None:
        """None when the server answers, else why not."""

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (trouble := self._answers()) is not None:
            if self.process.wait(READY_POLL_S):
                log = self.process.log_file
                raise ServiceError(f"{self.name} ended while starting. End of {log}:\n{self.process.log_tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} did not answer in {START_TIMEOUT_S:.0f} s: {trouble}")

    def _choose_port(self) -> None:
        remembered = self._remembered().get("port")
        port = self._given_port or remembered
        if not isinstance(port, int) or not (port_free(port) or self._given_port):
            port = free_port()
        if not port_free(port):
            raise ServiceError(f"port {port} is taken: stop what listens there, or give {self.name} another")
        self._remember(port=port)

    def _secret(self, key: str, given: str | None) -> str:
        """The password under ``key``: given, remembered, else new; remembered from now on."""
        remembered = self._remembered().get(key)
        password = given or (remembered if isinstance(remembered, str) else new_password())
        if password != remembered:
            self._remember(**{key: password})
        return password

    def _remembered(self) -> dict[str, object]:
        try:
            return dict(json.loads(self._memory.read_text()))
        except FileNotFoundError:
            return {}

    def _remember(self, **values: object) -> None:
        write_secret(self._memory, json.dumps({**self._remembered(), **values}, indent=1) + "\n")
