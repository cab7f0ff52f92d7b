"""`worker start` as a process of its own, and jobs for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from schemas.database import Connection, queries

#: Seconds that anything here may take: many times what it does, so that a hang fails its test and not the suite.
WAIT_S = 60
#: Seconds between two looks at something that is waited for.
LOOK_S = 0.05


def eventually(holds: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
    """Look until something holds, and return it."""
    deadline = time.monotonic() + within_s
    while not (value := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {within_s:.0f} s in vain: {what}")
        time.sleep(LOOK_S)
    return value


class Worker:
    """A running `worker start`."""

    def __init__(self, arguments: list[str], variables: dict[str, str], log: Path) -> None:
        self.log_file = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker", "start", *arguments],
                env={**os.environ, "GLEANER_ENGINE": "stub", **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def exit_code(self) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker does not end:\n{self.log()[-3000:]}")

    def terminate(self) -> int:
        """Stop it as a supervisor does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(environment: dict[str, str], tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers with the stub engine; what still runs at the end is killed."""
    started: list[Worker] = []
    numbers = count(1)

    def start(*arguments: str, **variables: Any) -> Worker:
        given = {f"GLEANER_{name.upper()}": str(value) for name, value in variables.items()}
        if "--name" not in arguments:
            arguments = (*arguments, "--name", f"w{next(numbers)}")
        started.append(Worker(list(arguments), given, tmp_path / f"worker-{len(started)}.log"))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


class JobView:
    """A job as Postgres has it."""

    def __init__(self, database: Connection, job_id: int) -> None:
        self._database = database
        self.id = job_id

    def _all(self, statement: str) -> list[dict[str, Any]]:
        return self._database.execute(statement, [self.id]).fetchall()  # type: ignore[arg-type]

    def ledger(self) -> dict[str, Any]:
        return queries.job_ledger(self._database, job_id=self.id)

    def rows(self) -> int:
        return self.ledger()["total"] - self.ledger()["pending"]

    def state(self) -> str:
        return self._all("SELECT state FROM gleaner.jobs WHERE id = %s")[0]["state"]

    def chunks(self) -> list[dict[str, Any]]:
        return self._all("SELECT * FROM gleaner.chunks WHERE job_id = %s ORDER BY chunk_no")

    def labels(self) -> list[dict[str, Any]]:
        return self._all("SELECT * FROM gleaner.labels WHERE job_id = %s ORDER BY ordinal")

    def done(self) -> bool:
        return self.state() == "done"

    def require_whole(self) -> None:
        """Done, every document `ok` once, the ledger balanced."""
        ledger = self.ledger()
        assert ledger["balanced"]
        assert ledger["ok"] == ledger["total"]
        assert self.state() == "done"
        assert {chunk["state"] for chunk in self.chunks()} == {"done"}
        assert len({row["ordinal"] for row in self.labels()}) == len(self.labels()) == ledger["total"]

    def require_given_back(self) -> None:
        """No chunk is leased, none is lost."""
        for chunk in self.chunks():
            assert (chunk["lease_owner"], chunk["lease_until"]) == (None, None)
            assert chunk["state"] in ("queued", "done")


EnqueueJob = Callable[..., JobView]


@pytest.fixture
def enqueue_job(run_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection) -> EnqueueJob:
    """Enqueues a job of so many documents."""

    def enqueue(documents: int, chunk_size: int, *arguments: str, schema: str | Path = "packages") -> JobView:
        corpus = write_corpus([{"id": n, "text": f"package {n} does one thing"} for n in range(documents)])
        result = run_cli("enqueue", corpus, "--schema", schema, "--chunk-size", str(chunk_size), "--json", *arguments)
        assert result.returncode == 0, result.stderr
        return JobView(database, json.loads(result.stdout)["job_id"])

    return enqueue
