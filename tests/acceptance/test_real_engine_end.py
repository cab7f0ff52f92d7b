"""A worker with the real engine that is told twice to stop: no process of vLLM stays."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.demo_model import NAME, ensure_model
from schemas.database import Connection, queries
from worker.family import descendants

#: Seconds until the engine must serve, and for what a test waits after that: it takes 40 to 60 on two idle cores.
START_TIMEOUT_S = 200
WAIT_S = 60
LOOK_S = 0.1


@pytest.fixture
def own_worker(environment: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker with the real engine, of this test alone, at the head of a process group."""
    if importlib.util.find_spec("vllm") is None:
        message = "vLLM is missing: make setup ENGINE=vllm"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    variables = {
        "GLEANER_ENGINE_PROFILE": "cpu",
        "GLEANER_MODEL": NAME,
        "GLEANER_MODEL_PATH": str(ensure_model()),
        "GLEANER_WRITE_INTERVAL_S": "0.2",
    }
    with (tmp_path / "worker.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "start", "--name", "real", "--slots", "2"],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print((tmp_path / "worker.log").read_text()[-3000:])


def _eventually(holds: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(LOOK_S)


def _busy(run_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection) -> int:
    """A job that the worker is in the middle of: its first rows are written."""
    corpus = write_corpus([{"id": n, "text": f"package {n} sorts numbers and names by size"} for n in range(256)])
    enqueued = run_cli("enqueue", corpus, "--schema", "packages", "--model", NAME, "--chunk-size", "128", "--json")
    assert enqueued.returncode == 0, enqueued.stderr
    job = int(json.loads(enqueued.stdout)["job_id"])
    _eventually(lambda: queries.job_ledger(database, job_id=job)["ok"], "the first rows", START_TIMEOUT_S + WAIT_S)
    return job


def _chunks(database: Connection, job: int) -> list[dict[str, Any]]:
    return database.execute("SELECT * FROM gleaner.chunks WHERE job_id = %s ORDER BY chunk_no", [job]).fetchall()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in (b"Z", b"X")


def _require_all_gone(pids: set[int]) -> None:
    _eventually(lambda: not any(map(_alive, pids)), "every process that the worker started is gone")


@pytest.mark.timeout(600)
def test_told_twice_it_takes_its_engine_along(
    own_worker: "subprocess.Popen[bytes]",
    run_cli: Callable[..., Any],
    write_corpus: Callable[..., Path],
    database: Connection,
    database_url: str,
) -> None:
    job = _busy(run_cli, write_corpus, database)
    below = descendants(own_worker.pid)
    assert below
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE gleaner.labels IN SHARE MODE")  # so that the first signal is not enough
        own_worker.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            own_worker.wait(2)
        own_worker.send_signal(signal.SIGTERM)
        assert own_worker.wait(WAIT_S) == 143
        _require_all_gone(below)
        assert {(chunk["failures"], chunk["lease_owner"]) for chunk in _chunks(database, job)} == {(0, None)}
