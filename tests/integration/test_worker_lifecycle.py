"""How a worker ends: told to, its engine dead, its memory full; nothing is lost and another finishes the job."""

import signal

from worker_process import EnqueueJob, StartWorker, eventually

#: Rows a second of a worker that is to be met in mid-chunk.
SLOW = 20
DOCUMENTS = 60


def test_a_job_is_labelled_and_the_worker_stops_when_told(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(DOCUMENTS, 16)
    worker = start_worker("--name", "gpu7")
    eventually(job.done, "the job's end")
    assert worker.terminate() == 0
    job.require_whole()
    assert all(row["worker"].startswith("gpu7@") for row in job.labels())


def test_sigterm_in_mid_chunk_keeps_the_finished_rows(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(DOCUMENTS, DOCUMENTS)
    worker = start_worker(stub_rows_per_s=SLOW, shutdown_s=5, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    assert worker.terminate() == 0
    kept = job.rows()
    assert 0 < kept < DOCUMENTS
    job.require_given_back()
    assert job.chunks()[0]["last_error"] == "the worker is shutting down"

    start_worker()
    eventually(job.done, "the job's end, by another worker")
    job.require_whole()
    assert sorted({row["attempt"] for row in job.labels()}) == [1, 2]
    assert sum(row["attempt"] == 1 for row in job.labels()) == kept


def test_a_dead_engine_exits_70_and_gives_the_chunks_back(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(DOCUMENTS, 20)
    dies_after = 31  # the canary, and half of the documents
    worker = start_worker("--slots", "2", stub_rows_per_s=SLOW * 5, stub_dies_after_rows=dies_after)
    assert worker.exit_code() == 70
    assert "the engine is gone" in worker.log()
    job.require_given_back()
    assert job.rows() == dies_after - 1
    assert job.ledger()["balanced"]
    assert "the engine is gone" in [chunk["last_error"] for chunk in job.chunks()]

    healthy = start_worker()
    eventually(job.done, "the job's end, by another worker")
    assert healthy.terminate() == 0
    job.require_whole()
    # Nobody has claimed a chunk again and again meanwhile.
    assert max(chunk["attempt"] for chunk in job.chunks()) == 2


def test_an_engine_that_dies_idle_exits_70(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(4, 4)
    worker = start_worker(stub_dies_after_rows=5)  # the canary, and the last document
    assert worker.exit_code() == 70
    job.require_given_back()
    assert job.rows() == 4


def test_the_memory_limit_drains_and_exits_75(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    rows_per_s, size = 4, 32
    job = enqueue_job(3 * size, size)
    worker = start_worker("--slots", "1", stub_rows_per_s=rows_per_s, memory_limit_gib=0.001)
    assert worker.exit_code() == 75
    assert "GLEANER_MEMORY_LIMIT_GIB is 0.001" in worker.log()
    # The chunk in flight was finished, not given back; no other was begun.
    assert [chunk["state"] for chunk in job.chunks()] == ["done", "queued", "queued"]
    assert [chunk["attempt"] for chunk in job.chunks()] == [1, 0, 0]
    job.require_given_back()

    start_worker()
    eventually(job.done, "the job's end, by another worker")
    job.require_whole()


def test_sigterm_while_draining_gives_back(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(200, 200)
    worker = start_worker(stub_rows_per_s=4, memory_limit_gib=0.001)
    eventually(lambda: "GLEANER_MEMORY_LIMIT_GIB is" in worker.log(), "the limit")
    # 0 if the signal came before Celery looked at the limit's own code.
    assert worker.terminate() in (0, 75)
    assert 0 < job.rows() < 200
    job.require_given_back()


def test_two_workers_share_a_job_and_every_row_is_written_once(
    start_worker: StartWorker, enqueue_job: EnqueueJob
) -> None:
    workers = [start_worker("--slots", "2", stub_rows_per_s=100) for _ in range(2)]
    for worker in workers:
        eventually(lambda worker=worker: " ready." in worker.log(), "the worker consumes")
    job = enqueue_job(400, 10)
    eventually(job.done, "the job's end")
    assert [worker.terminate() for worker in workers] == [0, 0]
    job.require_whole()
    assert len({row["worker"] for row in job.labels()}) == 2
    assert {chunk["attempt"] for chunk in job.chunks()} == {1}


def test_ctrl_c_is_no_failure(start_worker: StartWorker, enqueue_job: EnqueueJob) -> None:
    job = enqueue_job(DOCUMENTS, DOCUMENTS)
    worker = start_worker(stub_rows_per_s=SLOW, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    worker.process.send_signal(signal.SIGINT)
    assert worker.exit_code() == 0
    job.require_given_back()
    assert "given back: the worker is shutting down" in worker.log()
    assert "Traceback" not in worker.log()
