"""The local stack: Postgres, Valkey, a worker, the reconciler and Flower on 127.0.0.1, with all state in one folder.

==================  =================================================================================
``local.env``       settings (mode 600) that ``producer`` and ``worker`` read from the current folder
``postgres/``       data folder: see :mod:`ops.services`
``valkey/``         likewise
``worker.pid``      ``reconciler.pid`` and ``flower.pid``: see :mod:`ops.processes`
``logs/``           one log a part
``lock``            held while a run starts the stack, and by a demo until it ends
==================  =================================================================================
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from dotenv import dotenv_values
from kombu.exceptions import OperationalError
from pydantic import SecretStr
from redis.exceptions import RedisError

from ops import demo_model, flower
from ops.processes import SupervisedProcess
from ops.service import HOST, Service, free_port, new_password, port_free, write_secret
from ops.services import Postgres, Valkey
from schemas.errors import GleanerError, UsageError
from schemas.queue import create_app
from schemas.settings import load_settings

#: Seconds until the worker must answer. 36 to 50 s on a CPU, 184 s on a GPU that compiles first, and a
#: large model loads for minutes; a worker that gives up is noticed at once and needs no limit.
WORKER_TIMEOUT_S = 1800.0
#: Seconds one ping waits for the worker's answer: a live worker takes milliseconds.
PING_TIMEOUT_S = 1.0
#: Seconds between two pings, in which the worker's end is noticed.
WORKER_POLL_S = 0.2
#: Starts of Flower, each on another port: only a second stack that starts in the same seconds takes one.
FLOWER_TRIES = 3
#: Seconds the worker gets to write finished rows and give its chunks back. Beyond them its leases run out
#: by themselves.
WORKER_STOP_S = 10.0
#: Seconds for the reconciler to end its pass, of which all or nothing of each step is kept.
RECONCILER_STOP_S = 5.0


class Engine(StrEnum):
    """What labels in the local stack."""

    VLLM = "vllm"
    STUB = "stub"


class StackError(GleanerError):
    """A part of the local stack failed; the message holds the end of its log."""


class Stack:
    """The five parts and their state folder, whichever process started them.

    :param folder: the state folder; created when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.logs = self.folder / "logs"
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            # Postgres, which root runs as another user, passes through here.
            self.folder.chmod(0o711)
        self.logs.mkdir(exist_ok=True)
        self.postgres = Postgres(self.folder / "postgres", log_file=self.logs / "postgres.log")
        self.valkey = Valkey(self.folder / "valkey", log_file=self.logs / "valkey.log")
        self.worker = SupervisedProcess("worker", **self._files("worker"), stop_timeout_s=WORKER_STOP_S)
        self.reconciler = SupervisedProcess("reconciler", **self._files("reconciler"), stop_timeout_s=RECONCILER_STOP_S)
        self.flower = flower.Flower(**self._files("flower"))
        self.env_file = self.folder / "local.env"
        #: Why Flower doesn't run though the rest does; set by :meth:`start_processes`.
        self.flower_problem: str | None = None
        self._started: list[Service | SupervisedProcess] = []

    @property
    def parts(self) -> list[Service | SupervisedProcess]:
        """The parts in the order in which they are stopped: who uses another before the other."""
        return [self.worker, self.reconciler, self.flower, self.valkey, self.postgres]

    @property
    def environment(self) -> dict[str, str]:
        """What ``local.env`` holds; empty before the first start."""
        return {key: value for key, value in dotenv_values(self.env_file).items() if value is not None}

    @property
    def flower_url(self) -> str:
        """Flower's address, without user and password."""
        return f"http://{HOST}:{self.environment['GLEANER_FLOWER_PORT']}"

    def running(self) -> bool:
        """Whether every part runs."""
        return all(part.running() for part in self.parts)

    def labelling(self) -> bool:
        """Whether every part runs that labels need: all but Flower."""
        return all(part.running() for part in self.parts if part is not self.flower)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep other runs from starting the stack meanwhile. Stopping it needs no lock.

        :raises StackError: another run holds it.
        """
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackError(
                    f"another `make up` or `make demo` works in {self.folder}: let it end, or stop it with Ctrl-C"
                ) from None
            yield

    def start(self, engine: Engine, report: Callable[[str], None]) -> None:
        """Start the parts that don't run, and wait until the worker answers. What runs is left as it is.

        A Flower that can't be started is no error: see :attr:`flower_problem`.

        :param report: told each step, in words, as it begins.
        :raises UsageError: a worker with another engine runs.
        :raises GleanerError: a part failed; what this call started still runs until :meth:`stop_started`.
        """
        self.start_services(engine, report)
        self.start_processes(engine, report)

    def start_services(self, engine: Engine, report: Callable[[str], None]) -> None:
        """The first half of :meth:`start`: Postgres and Valkey, settings and tables. Enough for `producer`."""
        old = self.environment
        if self.worker.running() and old.get("GLEANER_ENGINE") != engine:
            raise UsageError(
                f"the local stack runs with engine {old.get('GLEANER_ENGINE')}: `make down` first, or ENGINE="
                f"{old.get('GLEANER_ENGINE')}"
            )
        if self.running():
            return
        for service in (self.postgres, self.valkey):
            if not service.running():
                report(f"starting {service.name}")
                self._started.append(service)
                service.start()
        model = self._model(engine, report)
        new = self._settings(old) | model
        if new != old:
            # They were given addresses or a model that hold no more. Only Flower has a use for its port.
            if new != old | {"GLEANER_FLOWER_PORT": new["GLEANER_FLOWER_PORT"]}:
                self.worker.stop()
                self.reconciler.stop()
            self.flower.stop()
            self._write_settings(new)
        report("creating the tables")
        self.run_producer("db", "upgrade")

    def start_processes(self, engine: Engine, report: Callable[[str], None]) -> None:
        """The second half of :meth:`start`: worker, reconciler and Flower, after :meth:`start_services`."""
        if self.running():
            return
        if not self.worker.running():
            self._started.append(self.worker)
            self._start_supervised(self.worker, [sys.executable, "-m", "worker", "start"])
        if not self.reconciler.running():
            self._started.append(self.reconciler)
            self._start_supervised(self.reconciler, self.producer_command("reconcile"))
        if not self.flower.running():
            self._started.append(self.flower)
            self.flower.launch(self.process_environment())
        self._wait_for_worker(engine, report)
        self.require(self.reconciler)
        self._wait_for_flower(report)

    def require(self, process: SupervisedProcess, wait_s: float = 0) -> None:
        """Wait a moment for a part's process to end.

        :raises StackError: it has ended; the message holds the end of its log.
        """
        if process.wait(wait_s):
            code = "" if process.exit_code is None else f" (exit code {process.exit_code})"
            raise StackError(f"the {process.name} ended{code}. End of {process.log_file}:\n{process.log_tail()}")

    def stop(self) -> None:
        """Stop all parts, whoever started them; nothing of them is left running. Safe to repeat."""
        for part in self.parts:
            part.stop()

    def stop_started(self) -> None:
        """Stop what this object started, and only that."""
        for part in self.parts:
            if part in self._started:
                part.stop()
        self._started.clear()

    def kill_started(self) -> None:
        """SIGKILL what this object started. No row is lost: Postgres and Valkey read their logs at the next
        start."""
        for part in self.parts:
            if part in self._started:
                part.kill()

    def remove(self) -> None:
        """Stop all parts and delete the state folder, with the data that lies elsewhere for it."""
        self.stop()
        self.valkey.remove()
        self.postgres.remove()
        shutil.rmtree(self.folder)

    def producer_command(self, *arguments: str) -> list[str]:
        """The command line of ``producer``, by this interpreter."""
        return [sys.executable, "-m", "producer", *arguments]

    def run_producer(self, *arguments: str) -> str:
        """Run a ``producer`` command on this stack and return its stdout.

        :raises StackError: it failed; the message holds what it said.
        """
        done = subprocess.run(
            self.producer_command(*arguments),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.process_environment(),
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise StackError(f"`producer {' '.join(arguments)}` failed (exit {done.returncode}):\n{said}")
        return done.stdout

    def process_environment(self) -> dict[str, str]:
        """The environment of what runs on this stack: this process's, with ``local.env`` winning over it."""
        return {**os.environ, **self.environment}

    def _start_supervised(self, process: SupervisedProcess, command: list[str]) -> None:
        """Start a process under one that starts it again when it dies: see :mod:`ops.supervisor`."""
        process.start([sys.executable, "-m", "ops.supervisor", *command], env=self.process_environment())

    def _files(self, name: str) -> dict[str, Path]:
        return {"pid_file": self.folder / f"{name}.pid", "log_file": self.logs / f"{name}.log"}

    def _model(self, engine: Engine, report: Callable[[str], None]) -> dict[str, str]:
        if engine is Engine.STUB:
            return {"GLEANER_ENGINE": engine, "GLEANER_MODEL": "stub"}
        folder = demo_model.cached_folder()
        if not folder.is_dir():
            report("converting the model (once, about 30 s)")
            # In a process of its own: torch would keep a gigabyte of this one.
            done = subprocess.run(
                [sys.executable, "-m", "ops.demo_model"],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                raise StackError(f"the model could not be converted:\n{done.stderr.strip()}")
        profile = {} if shutil.which("nvidia-smi") else {"GLEANER_ENGINE_PROFILE": "cpu"}
        return {
            "GLEANER_ENGINE": engine,
            **profile,
            "GLEANER_MODEL": demo_model.NAME,
            "GLEANER_MODEL_PATH": str(folder),
        }

    def _settings(self, old: dict[str, str]) -> dict[str, str]:
        port = old.get("GLEANER_FLOWER_PORT", str(flower.PORT))
        if not self.flower.running() and not port_free(int(port)):
            port = str(free_port())
        return {
            "GLEANER_DATABASE_URL": self.postgres.url,
            "GLEANER_BROKER_URL": self.valkey.url,
            "GLEANER_ANALYST_URL": self.postgres.analyst_url,
            "GLEANER_FLOWER_PORT": port,
            "GLEANER_FLOWER_USER": flower.USER,
            "GLEANER_FLOWER_PASSWORD": old.get("GLEANER_FLOWER_PASSWORD") or new_password(),
        }

    def _write_settings(self, settings: dict[str, str]) -> None:
        write_secret(self.env_file, "".join(f"{key}={_quoted(value)}\n" for key, value in settings.items()))

    def _wait_for_worker(self, engine: Engine, report: Callable[[str], None]) -> None:
        hint = ", about 40 s on a CPU" if engine is Engine.VLLM else ""
        report(f"starting the engine{hint}")
        settings = load_settings().model_copy(
            update={
                "broker_url": SecretStr(self.valkey.url),
                "model": self.environment["GLEANER_MODEL"],
            }
        )
        waited_s = 0.0
        with create_app(settings) as app:
            while waited_s < WORKER_TIMEOUT_S:
                # A broker that just started may refuse once; if it died, the worker's end tells.
                with suppress(OperationalError, RedisError, OSError):
                    if app.control.ping(timeout=PING_TIMEOUT_S):
                        return
                self.require(self.worker, WORKER_POLL_S)
                waited_s += PING_TIMEOUT_S
        raise StackError(f"the worker did not answer in {WORKER_TIMEOUT_S:.0f} s: see {self.worker.log_file}")

    def _wait_for_flower(self, report: Callable[[str], None]) -> None:
        """Wait until Flower answers; where another took its port meanwhile, start it on the next."""
        report("starting Flower")
        for left in reversed(range(FLOWER_TRIES)):
            if self.flower.came_up(self.environment):
                self.flower_problem = None
                return
            if self.flower.running() or not left:
                break
            self.flower.stop()
            self._write_settings(self.environment | {"GLEANER_FLOWER_PORT": str(free_port())})
            self.flower.launch(self.process_environment())
        self.flower.stop()
        self.flower_problem = f"could not be started, unlike the rest: see {self.flower.log_file}"


def _quoted(value: str) -> str:
    """A value as an env file takes it: a model's path may hold spaces and ``#``."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
