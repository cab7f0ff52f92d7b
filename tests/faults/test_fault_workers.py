"""Workers that die, freeze or are told to stop in mid-chunk."""

import signal
import time
from random import Random

from courier import Courier
from fleet import BRIEF, Fleet, Member, eventually, pass_time
from ledger import Enqueue, Job, assert_nothing_lost

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 40
SLOTS = 2
DOCUMENTS = 120
CHUNK = 20
#: Rows after which a chunk is still in work for sure.
LATEST = DOCUMENTS - 2 * CHUNK


def chunk_of(job: Job, worker: Member) -> dict[str, int] | None:
    """A chunk that the worker holds, with its rows so far."""
    found = job.ask(
        "SELECT chunk_no, attempt, (SELECT count(*) FROM gleaner.labels AS label"
        " WHERE label.job_id = chunk.job_id AND label.chunk_no = chunk.chunk_no) AS rows"
        " FROM gleaner.chunks AS chunk WHERE job_id = %(job)s AND state = 'running' AND lease_owner LIKE %(owner)s",
        owner=f"{worker.name}@%",
    )
    return found[0] if found else None


def test_a_worker_is_killed_in_mid_chunk(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    worker.kill()
    job.wait_for_end()
    assert worker.endings == [-signal.SIGKILL]
    assert job.attempts() == 2
    assert_nothing_lost(job, courier, held=SLOTS)


def test_one_of_two_workers_is_lost_with_its_host(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    workers = [fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED / 2) for _ in range(2)]
    reconciler = fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    eventually(lambda: all(chunk_of(job, worker) for worker in workers), "both work")
    job.wait_for_rows(chance.randint(1, LATEST))
    dead, alive = chance.sample(workers, 2)
    dead.lose()
    job.wait_for_end()
    assert alive.endings == []
    assert f"the lease of {dead.name}@" in reconciler.log
    assert_nothing_lost(job, courier, held=SLOTS)


def test_a_worker_that_freezes_past_its_lease_can_write_no_more(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    frozen, other = (fleet.worker(name, slots=1, stub_rows_per_s=SPEED / 2) for name in ("frozen", "other"))
    fleet.reconciler()
    job = enqueue(80, 40)
    at = chance.randint(2, 16)
    chunk = eventually(lambda: (c := chunk_of(job, frozen)) and c["rows"] >= at and c, "its chunk is begun")
    frozen.send(signal.SIGSTOP)

    def taken() -> list[dict[str, int]]:
        return job.ask(
            "SELECT (SELECT count(*) FROM gleaner.labels AS label WHERE label.job_id = chunk.job_id"
            " AND label.chunk_no = chunk.chunk_no AND label.attempt = %(attempt)s) AS rows"
            " FROM gleaner.chunks AS chunk"
            " WHERE job_id = %(job)s AND chunk_no = %(chunk_no)s AND attempt > %(attempt)s",
            **chunk,
        )

    kept = eventually(taken, "its chunk is taken over")[0]["rows"]
    frozen.send(signal.SIGCONT)
    eventually(lambda: f"(attempt {chunk['attempt']}) given up: its lease is lost" in frozen.log, "it finds out")
    job.wait_for_end()
    rows = [label for label in job.labels() if label["chunk_no"] == chunk["chunk_no"]]
    assert sum(label["attempt"] == chunk["attempt"] for label in rows) == kept < len(rows)
    assert all(
        label["worker"].startswith("frozen@" if label["attempt"] == chunk["attempt"] else "other@") for label in rows
    )
    assert (frozen.endings, other.endings) == ([], [])
    assert_nothing_lost(job, courier)


def test_sigterm_at_30_percent_of_a_chunk(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    worker = fleet.worker(slots=1, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS // 2, DOCUMENTS // 2)
    job.wait_for_rows(round(0.3 * job.documents))
    pass_time(chance.uniform(0, 0.2))  # anywhere between two writes
    told_at = time.monotonic()
    worker.send(signal.SIGTERM)
    eventually(lambda: worker.endings, "it ends")
    assert worker.endings == [0]
    assert time.monotonic() - told_at < float(BRIEF["SHUTDOWN_S"])
    kept = job.rows()
    # Its next life loads for seconds yet: whoever came first could have the chunk, without waiting for a lease.
    [chunk] = job.chunks()
    assert (chunk["state"], chunk["lease_until"], chunk["failures"]) == ("queued", None, 0)
    job.wait_for_end()
    assert sum(label["attempt"] == 1 for label in job.labels()) == kept >= round(0.3 * job.documents)
    assert_nothing_lost(job, courier)


def test_a_second_sigterm_ends_it_at_once(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    worker.send(signal.SIGTERM)
    pass_time(chance.uniform(0, 0.3))
    worker.send(signal.SIGTERM)
    eventually(lambda: worker.endings, "it ends", within_s=5)
    job.wait_for_end()
    assert job.attempts() == 2
    assert_nothing_lost(job, courier, held=SLOTS)
