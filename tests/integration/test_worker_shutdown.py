"""A worker that must leave: told twice, its engine hung, its consumer deaf; and what it tells of its health."""

import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import redis
from worker_process import EnqueueJob, JobView, StartWorker, Worker, eventually

from ops.service import free_port
from schemas.queue import create_app, queue_name
from schemas.settings import Settings
from worker.leaving import LAST_WORD_S

#: Rows a second of a worker that is to be met in mid-chunk.
SLOW = 20
#: What leaving at once may take beside the last word, where many processes share two cores.
MARGIN_S = 5.0
#: Seconds without progress after which a worker of these tests is stuck: far more than a look takes on a busy machine.
STALL_S = 3


@contextmanager
def _lock(url: str, table: str, mode: str) -> Iterator[None]:
    """A Postgres that does not answer whoever needs this table: it is locked."""
    with psycopg.connect(url) as connection:
        connection.execute(f"LOCK TABLE gleaner.{table} IN {mode} MODE")  # type: ignore[arg-type]
        yield


def _unacknowledged(settings: Settings) -> int:
    """Messages that the broker counts as held by a worker."""
    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
        return int(client.hlen(settings.broker_key_prefix + "unacked"))  # type: ignore[arg-type]


def _finish(run_cli: Callable[..., Any], start_worker: StartWorker, job: JobView) -> None:
    """Another worker, and the reconciler in place of the messages that are lost, end the job."""
    start_worker()

    def reconciled() -> bool:
        assert run_cli("reconcile", "--once").returncode == 0
        return job.done()

    eventually(reconciled, "the job's end, by another worker")
    job.require_whole()


def _terminate_twice(worker: Worker) -> float:
    """Seconds from the second signal to the end."""
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: "a second SIGTERM" in worker.log(), "the first signal is heard")
    asked = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.exit_code() == 143
    return time.monotonic() - asked


def test_the_second_sigterm_gives_the_chunks_back_and_leaves(
    start_worker: StartWorker, enqueue_job: EnqueueJob, run_cli: Callable[..., Any], database_url: str
) -> None:
    job = enqueue_job(60, 20)
    worker = start_worker("--slots", "2", stub_rows_per_s=SLOW, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    # Finished rows can't be written, which the first signal waits for; the leases can be freed.
    with _lock(database_url, "labels", "SHARE"):
        took_s = _terminate_twice(worker)
        assert took_s < LAST_WORD_S + MARGIN_S
        job.require_given_back()
        chunks = job.chunks()
    assert {chunk["failures"] for chunk in chunks} == {0}
    assert "told once more to stop (SIGTERM): leaving at once" in [chunk["last_error"] for chunk in chunks]
    _finish(run_cli, start_worker, job)


def test_the_second_sigterm_does_not_wait_for_postgres(
    start_worker: StartWorker, enqueue_job: EnqueueJob, run_cli: Callable[..., Any], database_url: str
) -> None:
    job = enqueue_job(40, 20)
    worker = start_worker("--slots", "2", stub_rows_per_s=SLOW, write_interval_s=0.2, lease_s=5)
    eventually(job.rows, "the first rows")
    with _lock(database_url, "chunks", "ACCESS EXCLUSIVE"):
        assert _terminate_twice(worker) < LAST_WORD_S + MARGIN_S
    _finish(run_cli, start_worker, job)


def test_ctrl_c_twice(start_worker: StartWorker, enqueue_job: EnqueueJob, database_url: str) -> None:
    job = enqueue_job(20, 20)
    worker = start_worker(stub_rows_per_s=SLOW, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    with _lock(database_url, "labels", "SHARE"):
        worker.process.send_signal(signal.SIGINT)
        eventually(lambda: "a second SIGTERM or Ctrl-C" in worker.log(), "the first signal is heard")
        worker.process.send_signal(signal.SIGINT)
        assert worker.exit_code() == 130
        job.require_given_back()
    assert "Traceback" not in worker.log()


def test_a_stop_that_takes_too_long_gives_the_chunks_back_all_the_same(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database_url: str
) -> None:
    job = enqueue_job(20, 20)
    worker = start_worker(stub_rows_per_s=SLOW, write_interval_s=0.2, shutdown_s=1)
    eventually(job.rows, "the first rows")
    with _lock(database_url, "labels", "SHARE"):
        assert worker.terminate() == 1
        job.require_given_back()
    assert "not stopped within 1 s (GLEANER_SHUTDOWN_S)" in job.chunks()[0]["last_error"]
    assert job.chunks()[0]["failures"] == 0


def _sigterm(worker: Worker, _: Settings) -> None:
    worker.process.send_signal(signal.SIGTERM)


def _remote_command(_: Worker, settings: Settings) -> None:
    with create_app(settings) as app:
        app.control.shutdown()


@pytest.mark.parametrize("tell", [_sigterm, _remote_command])
def test_every_message_is_back_in_the_queue_when_the_worker_is_gone(
    tell: Callable[[Worker, Settings], None],
    start_worker: StartWorker,
    enqueue_job: EnqueueJob,
    published: Callable[[], list[Any]],
    settings: Settings,
) -> None:
    size = 20
    job = enqueue_job(12 * size, size)
    worker = start_worker("--slots", "3", stub_rows_per_s=5 * SLOW, write_interval_s=0.2)
    eventually(lambda: job.rows() > 2 * size, "some chunks are done, some in work, some wait")
    # Fewer for a moment, between the end of a chunk and the next message.
    eventually(lambda: _unacknowledged(settings) == 3, "each slot holds a message")
    tell(worker, settings)
    assert worker.exit_code() == 0
    job.require_given_back()
    assert _unacknowledged(settings) == 0
    waiting = [chunk for chunk in job.chunks() if chunk["state"] == "queued"]
    assert 0 < len(waiting) < 12
    assert len(published()) == len(waiting)


def test_a_hung_engine_exits_70_and_the_chunk_is_another_workers(
    start_worker: StartWorker, enqueue_job: EnqueueJob
) -> None:
    answers = 8  # the canary among them
    job = enqueue_job(20, 20)
    worker = start_worker(stub_hangs_after_rows=answers, stall_s=STALL_S, write_interval_s=0.2)
    assert worker.exit_code() == 70
    assert f"the engine does not answer its requests for {STALL_S} s (GLEANER_STALL_S)" in worker.log()
    job.require_given_back()
    assert job.rows() == answers - 1
    assert [(chunk["failures"], chunk["last_error"]) for chunk in job.chunks()] == [(1, "the engine is gone")]
    start_worker()
    eventually(job.done, "the job's end, by another worker")
    job.require_whole()


def test_a_deaf_consumer_exits_75(start_worker: StartWorker, enqueue_job: EnqueueJob, settings: Settings) -> None:
    worker = start_worker(stall_s=STALL_S)
    first = enqueue_job(4, 4)
    eventually(first.done, "the worker takes messages")
    with create_app(settings) as app:
        # What a consumer does that a broker's restart has made deaf: nothing.
        app.control.cancel_consumer(queue_name(settings.model), reply=True, timeout=5)
    job = enqueue_job(3, 3)
    assert worker.exit_code() == 75
    assert "messages wait in the queue and none is taken by this worker (1 of them" in worker.log()
    assert job.chunks()[0]["attempt"] == 0
    start_worker()
    eventually(job.done, "the job's end, by another worker")


def test_an_idle_worker_is_not_deaf(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    worker = start_worker(stall_s=0.5)
    eventually(lambda: " ready." in worker.log(), "the worker consumes")
    idle_since = time.monotonic()
    eventually(lambda: time.monotonic() > idle_since + 3, "several times the limit")
    job = enqueue_job(4, 4)
    eventually(job.done, "the job's end")
    assert worker.terminate() == 0


def _ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except OSError:
        return 0, {"state": "away"}
    finally:
        connection.close()


def test_health_over_http(start_worker: StartWorker, enqueue_job: EnqueueJob, database_url: str) -> None:
    port = free_port()

    def told(state: str) -> bool:
        return _ask(port, "/health")[1]["state"] == state

    # A start that takes long, as a large model's does: here the leases can't be looked at.
    with _lock(database_url, "chunks", "ACCESS EXCLUSIVE"):
        worker = start_worker(
            "--name", "gpu3", health_port=port, stub_hangs_after_rows=8, stall_s=STALL_S, shutdown_s=60
        )
        eventually(lambda: told("starting"), "the endpoint is up")
        assert (_ask(port, "/health")[0], _ask(port, "/ready")[0]) == (200, 503)
    eventually(lambda: told("idle"), "the worker consumes")
    assert (_ask(port, "/health")[0], _ask(port, "/ready")[0]) == (200, 200)
    assert f"health on http://127.0.0.1:{port}/health" in worker.log()

    # The engine hangs, and the chunk can't be given back for a while: its rows can't be written.
    with _lock(database_url, "labels", "SHARE"):
        enqueue_job(20, 20)
        eventually(lambda: told("working"), "the chunk is taken")
        assert (_ask(port, "/health")[0], _ask(port, "/ready")[0]) == (200, 200)
        eventually(lambda: told("stuck"), "the engine's silence counts")
        status, health = _ask(port, "/health")
        assert status == 503
        assert _ask(port, "/ready")[0] == 503
        assert health["reason"] == "the engine does not answer its requests"
        assert health["worker"].startswith("gpu3@")
        assert health["engine"] == "stub"
        assert health["chunks_in_work"] == 1
        assert health["quiet_s"] > 0
        assert health["queued_messages"] in (0, None)
    assert worker.exit_code() == 70


def test_a_port_that_is_taken_is_one_line_and_exit_1(start_worker: StartWorker) -> None:
    port = free_port()
    first = start_worker(health_port=port)
    eventually(lambda: _ask(port, "/ready")[0] == 200, "the first worker consumes")
    second = start_worker(health_port=port)
    assert second.exit_code() == 1
    assert f"error: no health endpoint on 127.0.0.1 port {port}: Address already in use" in second.log()
    assert "Traceback" not in second.log()
    assert first.terminate() == 0


def test_two_workers_of_a_host_tell_their_health_on_two_ports(start_worker: StartWorker) -> None:
    workers = [start_worker() for _ in range(2)]
    ports = set()
    for worker in workers:
        eventually(lambda worker=worker: " ready." in worker.log(), "the worker consumes")
        port = int(worker.log().partition("health on http://127.0.0.1:")[2].partition("/")[0])
        assert _ask(port, "/ready")[0] == 200
        ports.add(port)
    assert len(ports) == 2


def test_told_to_stop_while_the_engine_loads(start_worker: StartWorker) -> None:
    # It waits for a server that is not there.
    worker = start_worker(engine="openai", openai_base_url=f"http://127.0.0.1:{free_port()}/v1", max_model_len=1000)
    eventually(lambda: "is away, waiting" in worker.log(), "the engine loads")
    assert worker.terminate() == 0
    assert "Traceback" not in worker.log()
