"""A broker or a database that goes away in mid-chunk: the worker stays, and the job ends whole."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_process import EnqueueJob, StartWorker, eventually

from ops.services import Valkey
from schemas.queue import ChunkMessage, create_app, publish
from schemas.settings import Settings, load_settings

#: Rows a second of a worker that is to be met in mid-chunk.
SLOW = 20


@pytest.fixture
def own_valkey(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    """A broker of this test's own, so that it can be killed."""
    with Valkey(tmp_path / "valkey") as server:
        monkeypatch.setenv("GLEANER_BROKER_URL", server.url)
        load_settings.cache_clear()
        yield server
    server.remove()


def test_a_broker_that_is_killed_and_comes_back(
    own_valkey: Valkey, start_worker: StartWorker, enqueue_job: EnqueueJob, run_cli: Callable[..., Any]
) -> None:
    worker = start_worker(stub_rows_per_s=SLOW)
    job = enqueue_job(80, 20)
    eventually(lambda: job.rows() > 3, "the first rows are there")
    own_valkey.kill()
    eventually(lambda: "Connection" in worker.log(), "the worker notices")
    own_valkey.start()
    eventually(job.done, "the job is done")
    job.require_whole()
    assert worker.terminate() == 0
    assert "Traceback" not in worker.log()


def test_connections_to_postgres_that_are_cut(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Any
) -> None:
    worker = start_worker(stub_rows_per_s=SLOW)
    job = enqueue_job(60, 20)
    for rows in (3, 20, 40):
        eventually(lambda rows=rows: job.rows() > rows, f"{rows} rows are there")
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'gleaner worker%%' AND datname = current_database()"
        )
    eventually(job.done, "the job is done")
    job.require_whole()
    assert worker.terminate() == 0


def test_a_chunk_that_postgres_lets_nobody_claim_comes_back_at_a_gentle_pace(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Any, settings: Settings
) -> None:
    worker = start_worker()
    eventually(lambda: " ready." in worker.log(), "the worker consumes")
    job = enqueue_job(4, 4, "--model", "nobodys")
    database.execute("ALTER TABLE gleaner.chunks RENAME TO taken_away")
    with create_app(settings) as app:
        publish(app, settings.model, [ChunkMessage(job_id=job.id, chunk_no=0, first_ordinal=0, last_ordinal=3)])
    eventually(lambda: "given back: no claim" in worker.log(), "the worker is refused")
    refused_at = time.monotonic()
    eventually(lambda: time.monotonic() > refused_at + 1, "a second in which an eager worker would ask a hundred times")
    assert worker.log().count("given back: no claim") == 1
    database.execute("ALTER TABLE gleaner.taken_away RENAME TO chunks")
    eventually(lambda: "is not to be claimed" in worker.log(), "the message is looked at again")
