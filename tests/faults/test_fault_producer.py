"""Producers and reconcilers that are killed, in mid-load, in mid-publish, again and again."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any

import pytest
from courier import Courier
from fleet import Fleet, eventually, pass_time
from ledger import Enqueue, Job, assert_nothing_lost

from schemas.database import Connection, connect
from schemas.queue import PUBLISH_BATCH
from schemas.settings import load_settings

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 40
SLOTS = 2
DOCUMENTS = 120
CHUNK = 10
#: Documents whose loading takes long enough to be met in the middle.
MANY = 6_000
#: Chunks whose publishing takes two batches.
MANY_CHUNKS = PUBLISH_BATCH + 100

#: Holds a producer up after its first batch of messages for as long as somebody else has the lock.
HOLD_PUBLISHING = """
    CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
    CREATE TRIGGER hold AFTER UPDATE OF published_at ON gleaner.chunks
        FOR EACH STATEMENT EXECUTE FUNCTION public.hold();
"""
#: Whether a producer has copied so many documents, or waits to go on.
COPIED = """
    SELECT pid FROM pg_stat_progress_copy WHERE datname = current_database() AND tuples_processed >= %s
    UNION ALL
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""

RunCli = Callable[..., Any]
StartCli = Callable[..., "Popen[str]"]


@pytest.fixture
def watcher(brief: None) -> Iterator[Connection]:
    """A connection that looks at what a producer does."""
    with connect(load_settings(), "fault tests") as connection:
        yield connection


@contextmanager
def holding(lock: str) -> Iterator[None]:
    """Hold a lock that keeps a producer from ending before the test has killed it, however slow the test is."""
    with connect(load_settings(), "fault tests") as connection, connection.transaction():
        connection.execute(lock)
        yield


class Order:
    """A corpus, and the call that enqueues it."""

    def __init__(self, write_corpus: Callable[..., Path], documents: int, chunk: int) -> None:
        texts = [f"package {n} does one thing " + "and then another " * (n % 50) for n in range(documents)]
        self.documents = [(n, f"p{n}", text) for n, text in enumerate(texts)]
        self.chunk = chunk
        corpus = write_corpus([{"id": name, "text": text} for _, name, text in self.documents])
        self.call = ["enqueue", corpus, "--schema", "packages", "--chunk-size", str(chunk), "--json"]


def require_whole(watcher: Connection, run_cli: RunCli, order: Order) -> Job:
    """Run the call again: one corpus, one job, as an undisturbed run leaves them; once more changes nothing."""
    runs = [run_cli(*order.call) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    first, second = (json.loads(run.stdout) for run in runs)
    assert (second["job_id"], second["corpus_id"], second["chunks"]) == (
        first["job_id"],
        first["corpus_id"],
        first["chunks"],
    )
    assert not second["created"]
    assert not second["corpus_loaded"]
    counts = "SELECT (SELECT count(*) FROM gleaner.corpora) AS corpora, (SELECT count(*) FROM gleaner.jobs) AS jobs"
    assert watcher.execute(counts).fetchone() == {"corpora": 1, "jobs": 1}
    loaded = watcher.execute("SELECT ordinal, external_id, text FROM gleaner.documents ORDER BY ordinal").fetchall()
    assert [tuple(row.values()) for row in loaded] == order.documents
    cut = watcher.execute("SELECT first_ordinal, size FROM gleaner.chunks ORDER BY chunk_no").fetchall()
    starts = range(0, len(order.documents), order.chunk)
    assert [tuple(row.values()) for row in cut] == [(start, order.chunk) for start in starts]
    return Job(load_settings(), first["job_id"], len(order.documents))


def test_a_producer_is_killed_in_mid_load(
    chance: Random,
    fleet: Fleet,
    write_corpus: Callable[..., Path],
    watcher: Connection,
    start_cli: StartCli,
    run_cli: RunCli,
    courier: Courier,
) -> None:
    order = Order(write_corpus, MANY, 500)
    fleet.worker(slots=SLOTS)
    fleet.reconciler()
    copied = chance.randint(1, MANY)
    with holding("LOCK TABLE gleaner.corpus_rejects IN ACCESS EXCLUSIVE MODE"):  # written after the documents
        producer = start_cli(*order.call)
        eventually(lambda: watcher.execute(COPIED, [copied]).fetchone(), f"{copied} documents are copied", look_s=0)
        producer.kill()
        assert producer.wait() == -signal.SIGKILL
    job = require_whole(watcher, run_cli, order)
    job.wait_for_end()
    assert_nothing_lost(job, courier)
    job.close()


def test_a_producer_is_killed_in_mid_publish(
    chance: Random,
    fleet: Fleet,
    write_corpus: Callable[..., Path],
    watcher: Connection,
    start_cli: StartCli,
    run_cli: RunCli,
    courier: Courier,
) -> None:
    order = Order(write_corpus, 2 * MANY_CHUNKS, 2)
    watcher.execute(HOLD_PUBLISHING)
    sent = chance.randint(1, PUBLISH_BATCH)
    with holding("SELECT pg_advisory_xact_lock(1)"):
        producer = start_cli(*order.call)
        eventually(lambda: courier.queued() >= sent, f"{sent} messages are sent", look_s=0)
        producer.kill()
        assert producer.wait() == -signal.SIGKILL
    assert courier.queued() < MANY_CHUNKS
    job = require_whole(watcher, run_cli, order)
    assert courier.queued() == MANY_CHUNKS
    fleet.worker(slots=8)
    fleet.reconciler()
    job.wait_for_end()
    assert_nothing_lost(job, courier)
    job.close()


def test_a_reconciler_is_killed_again_and_again(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    reconciler = fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    # So that there is something for it to put right.
    job.wait_for_rows(chance.randint(1, DOCUMENTS // 2))
    courier.lose(DOCUMENTS)
    worker.kill()
    for _ in range(4):
        pass_time(chance.uniform(0, 1.2))  # from its first import to its second pass
        reconciler.kill()
    job.wait_for_end()
    assert reconciler.endings == 4 * [-signal.SIGKILL]
    assert_nothing_lost(job, courier, held=SLOTS)


def test_of_two_reconcilers_the_one_at_work_is_killed(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    pair = [fleet.reconciler(), fleet.reconciler()]
    job = enqueue(DOCUMENTS, CHUNK)
    standing_by = eventually(
        lambda: next((one for one in pair if "standing by" in one.log), None), "one works, the other stands by"
    )
    [at_work] = [one for one in pair if one is not standing_by]
    job.wait_for_rows(chance.randint(1, DOCUMENTS // 2))
    at_work.lose()
    assert courier.lose(DOCUMENTS) > 0
    job.wait_for_end()
    assert "waited without a message" in standing_by.log
    assert_nothing_lost(job, courier)
