"""Leases and their fencing tokens, against real Postgres: who may work on a chunk, and whose writes count."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from worker_process import eventually

from schemas.database import Connection, queries
from schemas.outcomes import LeaseLost, Outcome
from schemas.pool import Pool, open_pool
from schemas.settings import Settings
from worker.lease import Lease, LeaseKeeper
from worker.row import Row
from worker.writer import RowWriter

DOCUMENTS = 6


@pytest.fixture
def pool(settings: Settings) -> Iterator[Pool]:
    with open_pool(settings, "tests", size=4) as pool:
        yield pool


@pytest.fixture
def job(run_cli: Callable[..., Any], write_corpus: Callable[..., Path]) -> int:
    corpus = write_corpus([{"id": n, "text": f"thing {n}"} for n in range(DOCUMENTS)])
    return int(json.loads(run_cli("enqueue", corpus, "--schema", "packages", "--json").stdout)["job_id"])


def claim(keeper: LeaseKeeper, job: int) -> Lease:
    lease = keeper.claim(job, 0)
    assert lease is not None
    return lease


def row(ordinal: int) -> Row:
    return Row(ordinal, Outcome.OK, label={"by": "test"})


def expire(database: Connection) -> None:
    """The lease runs out, and the reconciler notices."""
    database.execute("UPDATE gleaner.chunks SET lease_until = now() - interval '1 second'")
    list(queries.take_over_expired(database, max_failures=3, batch=10))


def written(database: Connection) -> dict[int, str]:
    return {
        r["ordinal"]: r["worker"] for r in database.execute("SELECT ordinal, worker FROM gleaner.labels").fetchall()
    }


def test_a_chunk_is_worked_by_one_worker_at_a_time(pool: Pool, settings: Settings, job: int) -> None:
    first, second = LeaseKeeper(pool, settings, "first"), LeaseKeeper(pool, settings, "second")
    lease = claim(first, job)
    assert (lease.attempt, lease.size, lease.last_ordinal) == (1, DOCUMENTS, DOCUMENTS - 1)
    assert second.claim(job, 0) is None
    assert first.claim(job, 0) is None  # the same message once more, while it is worked on


def test_what_could_not_be_given_back_is_given_back_later(pool: Pool, settings: Settings, job: int) -> None:
    keeper = LeaseKeeper(pool, settings.model_copy(update={"lease_s": 3}), "first")
    lease = claim(keeper, job)
    with pool.connection() as connection:
        connection.execute("ALTER TABLE gleaner.chunks RENAME TO taken_away")
        assert keeper.release(lease, "Postgres is away", failed=1) == 1
        keeper.drop(lease)
        connection.execute("ALTER TABLE gleaner.taken_away RENAME TO chunks")
    keeper.start()
    try:
        other = LeaseKeeper(pool, settings, "second")
        assert eventually(lambda: other.claim(job, 0), "the chunk is free").attempt == 2
    finally:
        keeper.stop()


def test_what_a_dead_process_left_is_free_for_its_successor(
    pool: Pool, settings: Settings, job: int, database: Connection
) -> None:
    claim(LeaseKeeper(pool, settings, "gpu0@here"), job)
    bystander, successor = LeaseKeeper(pool, settings, "gpu1@here"), LeaseKeeper(pool, settings, "gpu0@here")
    bystander.start()
    bystander.stop()
    assert successor.claim(job, 0) is None
    successor.start()
    successor.stop()
    assert claim(successor, job).attempt == 2
    assert database.execute("SELECT failures, last_error FROM gleaner.chunks").fetchone()["failures"] == 1


def test_a_claim_whose_answer_was_lost_is_given_back_as_nobodys_failure(
    pool: Pool, settings: Settings, job: int, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = LeaseKeeper(pool, settings.model_copy(update={"fair_share": 0}), "w")
    claim_named = queries.claim_named

    def cut(*args: Any, **kwargs: Any) -> None:
        claim_named(*args, **kwargs)
        raise psycopg.OperationalError("cut before the answer")

    monkeypatch.setattr(queries, "claim_named", cut)
    with pytest.raises(psycopg.OperationalError):
        keeper.claim(job, 0)
    assert database.execute("SELECT state, attempt FROM gleaner.chunks").fetchone() == {
        "state": "running",
        "attempt": 1,
    }
    monkeypatch.undo()
    assert claim(keeper, job).attempt == 2
    assert database.execute("SELECT failures FROM gleaner.chunks").fetchone() == {"failures": 0}


def test_finishing_may_be_repeated_when_its_answer_was_lost(
    pool: Pool, settings: Settings, job: int, database: Connection
) -> None:
    lease = claim(LeaseKeeper(pool, settings, "w"), job)
    writer = RowWriter(pool, settings, lease, "w", engine_id=1)
    for ordinal in range(DOCUMENTS):
        writer.add(row(ordinal))
    writer.flush()
    done = {"held": True, "finished": True}
    for _ in range(2):
        assert queries.finish_chunk(database, job_id=job, chunk_no=0, attempt=lease.attempt) == done
    # Its worker died before it closed the job: whoever gets the message again closes it.
    assert queries.job_by_id(database, job_id=job)["state"] == "queued"
    assert LeaseKeeper(pool, settings, "other").claim(job, 0) is None
    assert queries.job_by_id(database, job_id=job)["state"] == "done"


def test_writes_under_an_old_token_are_refused(pool: Pool, settings: Settings, job: int, database: Connection) -> None:
    slow, quick = LeaseKeeper(pool, settings, "slow"), LeaseKeeper(pool, settings, "quick")
    old = claim(slow, job)
    late = RowWriter(pool, settings, old, "slow", engine_id=1)
    late.add(row(0))
    late.flush()
    expire(database)
    new = claim(quick, job)
    late.add(row(1))
    with pytest.raises(LeaseLost):
        late.flush()
    assert old.lost.is_set()
    late.add(row(2))
    with pytest.raises(LeaseLost):
        late.flush()
    assert written(database) == {0: "slow"}

    writer = RowWriter(pool, settings, new, "quick", engine_id=1)
    for ordinal in range(DOCUMENTS):
        writer.add(row(ordinal))
    writer.flush()
    assert written(database) == {0: "slow", **dict.fromkeys(range(1, DOCUMENTS), "quick")}

    assert queries.finish_chunk(database, job_id=job, chunk_no=0, attempt=old.attempt) == {
        "held": False,
        "finished": False,
    }
    assert queries.finish_chunk(database, job_id=job, chunk_no=0, attempt=new.attempt)["finished"]
    expire(database)
    assert quick.claim(job, 0) is None  # finished is finished


def test_a_chunk_with_a_row_missing_is_not_finished(
    pool: Pool, settings: Settings, job: int, database: Connection
) -> None:
    lease = claim(LeaseKeeper(pool, settings, "w"), job)
    writer = RowWriter(pool, settings, lease, "w", engine_id=1)
    writer.add(row(0))
    writer.flush()
    answer = queries.finish_chunk(database, job_id=job, chunk_no=0, attempt=lease.attempt)
    assert answer == {"held": True, "finished": False}
    assert queries.job_ledger(database, job_id=job)["pending"] == DOCUMENTS - 1


def test_leases_are_renewed_until_they_are_lost(pool: Pool, settings: Settings, job: int, database: Connection) -> None:
    brief = settings.model_copy(update={"lease_s": 3})
    keeper = LeaseKeeper(pool, brief, "w")
    keeper.start()
    try:
        lease = claim(keeper, job)
        before = lease.renewed_at
        while lease.renewed_at == before:
            assert not lease.lost.wait(0.05)
        database.execute("UPDATE gleaner.chunks SET attempt = attempt + 1")
        assert lease.lost.wait(10)
    finally:
        keeper.stop()


def test_a_row_that_postgres_refuses_does_not_take_its_batch_along(
    pool: Pool, settings: Settings, job: int, database: Connection
) -> None:
    writer = RowWriter(pool, settings, claim(LeaseKeeper(pool, settings, "w"), job), "w", engine_id=1)
    for ordinal in range(DOCUMENTS):
        # The check of labels keeps such a value from ever getting here; what it misses must cost one row.
        writer.add(Row(ordinal, Outcome.OK, label={"n": "\x00" if ordinal == 3 else "fine"}))
    writer.flush()
    outcomes = {
        r["ordinal"]: (r["outcome"], r["reason_code"])
        for r in database.execute("SELECT ordinal, outcome, reason_code FROM gleaner.labels").fetchall()
    }
    assert outcomes.pop(3) == ("invalid", "bad_characters")
    assert set(outcomes.values()) == {("ok", None)}
    assert len(outcomes) == DOCUMENTS - 1
