"""Each decision of the reconciler, on real Postgres and Valkey; workers here are hands that hold leases."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from pydantic import SecretStr
from worker_process import EnqueueJob, JobView, eventually

from producer.reconciler import Act, Decision, Reconciler, reconcile_once
from schemas.closing import close_job
from schemas.database import Connection, connect, queries
from schemas.pool import open_pool
from schemas.queue import create_app, queue_name, queued_messages
from schemas.settings import Settings
from worker.lease import Lease, LeaseKeeper

Reconcile = Callable[[], list[Act]]


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    with create_app(settings) as app:
        yield app


@pytest.fixture
def reconcile(settings: Settings, app: Celery) -> Reconcile:
    """One pass; returns what it did."""

    def run() -> list[Act]:
        acts: list[Act] = []
        assert reconcile_once(settings, app, acts.append)
        return acts

    return run


@pytest.fixture
def keeper(settings: Settings) -> Iterator[LeaseKeeper]:
    with open_pool(settings, "tests", size=2) as pool:
        yield LeaseKeeper(pool, settings.model_copy(update={"fair_share": 0}), "hands")


@pytest.fixture
def empty_queue(settings: Settings) -> Callable[[], None]:
    """The broker forgets."""

    def empty() -> None:
        with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
            client.delete(settings.broker_key_prefix + queue_name(settings.model))

    return empty


def claim(keeper: LeaseKeeper, job: JobView, chunk_no: int = 0) -> Lease:
    lease = keeper.claim(job.id, chunk_no)
    assert lease is not None
    keeper.drop(lease)  # its worker says nothing any more
    return lease


def expire(database: Connection) -> None:
    database.execute("UPDATE gleaner.chunks SET lease_until = now() - interval '1 second' WHERE state = 'running'")


def write_rows(database: Connection, lease: Lease, *ordinals: int) -> None:
    for ordinal in ordinals:
        database.execute(
            "INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, dropped_tokens, parts, tries,"
            " attempt, worker) VALUES (%s, %s, %s, 'ok', '{}', 0, 1, 1, %s, 'hands')",
            [lease.job_id, ordinal, lease.chunk_no, lease.attempt],
        )


def decisions(acts: list[Act]) -> list[Decision]:
    return [act.decision for act in acts]


def test_nothing_is_done_where_all_is_well(enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile) -> None:
    assert reconcile() == []
    job = enqueue_job(30, 10)
    claim(keeper, job)
    before = job.chunks()
    for _ in range(3):
        assert reconcile() == []
    assert job.chunks() == before


def test_a_lease_that_ran_out_is_taken_over(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection
) -> None:
    job = enqueue_job(30, 10)
    old = claim(keeper, job)
    expire(database)
    taken, *rest = reconcile()
    assert (taken.decision, taken.job_id, taken.chunk_no) == (Decision.TAKEN_OVER, job.id, 0)
    assert taken.reason.startswith("the lease of hands/")
    assert rest == []  # the queue still holds a message for each chunk
    chunk = job.chunks()[0]
    assert (chunk["state"], chunk["failures"], chunk["lease_owner"]) == ("queued", 1, None)
    new = claim(keeper, job)
    assert new.attempt == old.attempt + 1
    late = queries.write_rows(
        database, job_id=job.id, chunk_no=0, attempt=old.attempt, worker="w", engine_id=1, rows="[]"
    )
    assert late["held"] is False


def test_a_chunk_whose_lease_runs_out_too_often_is_quarantined(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection, settings: Settings
) -> None:
    job = enqueue_job(10, 10)
    found = []
    for _ in range(settings.chunk_max_failures):
        claim(keeper, job)
        expire(database)
        found += decisions(reconcile())
    assert found == [Decision.TAKEN_OVER] * (settings.chunk_max_failures - 1) + [Decision.QUARANTINED]
    assert job.chunks()[0]["state"] == "quarantined"
    assert keeper.claim(job.id, 0) is None  # only for a worker with nothing else at its engine
    assert keeper.claim_quarantined() is not None


def test_one_quarantined_chunk_at_a_time_puts_a_worker_at_risk(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, database: Connection, settings: Settings
) -> None:
    enqueue_job(20, 10)
    database.execute("UPDATE gleaner.chunks SET state = 'quarantined', failures = %s", [settings.chunk_max_failures])
    assert keeper.quarantined_waits()
    first = keeper.claim_quarantined()
    assert first is not None
    assert not keeper.quarantined_waits()
    assert keeper.claim_quarantined() is None
    keeper.release(first, "not now")
    assert keeper.quarantined_waits()
    assert keeper.claim_quarantined() is not None


def test_a_job_with_too_much_poison_is_paused(
    enqueue_job: EnqueueJob, settings: Settings, app: Celery, database: Connection
) -> None:
    job = enqueue_job(4, 1)
    database.execute(
        "UPDATE gleaner.chunks SET state = 'quarantined', alone = true, failures_alone = 2, last_error = 'died'"
        " WHERE chunk_no < 3"
    )
    acts: list[Act] = []
    assert reconcile_once(settings.model_copy(update={"poison_limit": 3}), app, acts.append)
    assert decisions(acts) == [Decision.POISON] * 3 + [Decision.PAUSED]
    assert acts[-1].reason.startswith("3 of its documents took engine or worker down")
    assert job.state() == "paused"
    assert job.ledger()["failed"] == 3
    assert job.ledger()["balanced"]


def test_what_goes_wrong_alone_is_halved_until_the_poison_is_found(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection, settings: Settings
) -> None:
    poison, documents = 5, 8
    job = enqueue_job(documents, documents)
    database.execute(
        "UPDATE gleaner.chunks SET state = 'quarantined', failures = %s, last_error = 'died'",
        [settings.chunk_max_failures],
    )
    acts: list[Act] = []
    tried = 0
    while (lease := keeper.claim_quarantined()) is not None:
        tried += 1
        keeper.drop(lease)
        if lease.first_ordinal <= poison <= lease.last_ordinal:
            keeper.release(lease, "the engine is gone", failed=1)
        else:
            write_rows(database, lease, *range(lease.first_ordinal, lease.last_ordinal + 1))
            answer = queries.finish_chunk(database, job_id=lease.job_id, chunk_no=lease.chunk_no, attempt=lease.attempt)
            assert answer == {"held": True, "finished": True}
        acts += reconcile()
        assert job.ledger()["balanced"]
    judged = [act for act in acts if act.decision in (Decision.HALVED, Decision.TRIED_AGAIN, Decision.POISON)]
    assert decisions(judged) == [Decision.HALVED] * 3 + [Decision.TRIED_AGAIN, Decision.POISON]
    assert judged[0].reason == "it went wrong alone (the engine is gone): the documents from 4 on are chunk 1 now"
    assert judged[-1].reason.startswith(f"document {poison}: it went wrong 2 times with nothing else at the engine")
    assert tried == 8  # the whole, then two halves three times, and the last once more
    assert acts[-1].decision == Decision.ENDED
    assert job.done()
    ledger = job.ledger()
    assert (ledger["balanced"], ledger["ok"], ledger["failed"]) == (True, documents - 1, 1)
    (bad,) = [row for row in job.labels() if row["outcome"] == "failed"]
    assert (bad["ordinal"], bad["reason_code"], bad["worker"]) == (poison, "poison", "reconciler")
    assert bad["reason"] == "it went wrong 2 times with nothing else at the engine: the engine is gone"


def test_nothing_is_poison_that_was_not_worked_on_alone(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection, settings: Settings
) -> None:
    """Whatever the counter says: GLEANER_CHUNK_MAX_FAILURES may have been lowered since."""
    job = enqueue_job(1, 1)
    database.execute("UPDATE gleaner.chunks SET failures = %s", [settings.chunk_max_failures + 1])
    keeper.release(claim(keeper, job), "the worker is shutting down")
    assert job.chunks()[0]["state"] == "quarantined"
    assert reconcile() == []
    lease = keeper.claim_quarantined()
    assert lease is not None
    keeper.release(lease, "the worker is shutting down")
    assert reconcile() == []
    assert job.rows() == 0
    assert keeper.claim_quarantined() is not None


def test_what_fails_for_one_job_does_not_keep_the_others_waiting(
    enqueue_job: EnqueueJob,
    keeper: LeaseKeeper,
    settings: Settings,
    app: Celery,
    database: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = enqueue_job(4, 2)
    other = enqueue_job(6, 2)
    write_rows(database, claim(keeper, other), 0, 1)
    for job in (stuck, other):
        queries.request_cancel(database, job_id=job.id)
    expire(database)
    monkeypatch.setattr("producer.reconciler.LOCK_S", 1)
    acts: list[Act] = []
    stop = threading.Event()

    def tell(act: Act) -> None:
        acts.append(act)
        if act.decision is Decision.ENDED:
            stop.set()

    with connect(settings, "somebody") as somebody, somebody.transaction():
        somebody.execute("SELECT FROM gleaner.chunks WHERE job_id = %s FOR UPDATE", [stuck.id])
        Reconciler(settings, app, tell).run(stop, lambda: None)
    assert Decision.FAILED in [act.decision for act in acts if act.job_id == stuck.id]
    assert other.state() == "cancelled"
    assert stuck.state() == "cancelling"


def test_a_job_that_was_opened_again_meanwhile_is_not_closed(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, settings: Settings, database: Connection
) -> None:
    """One that sees all chunks done waits for the job's lock, while `producer retry` opens chunks under it."""
    job = enqueue_job(2, 2)
    lease = claim(keeper, job)
    write_rows(database, lease, 0, 1)
    database.execute("UPDATE gleaner.labels SET outcome = 'failed', label = NULL, reason_code = 'engine_error'")
    queries.finish_chunk(database, job_id=job.id, chunk_no=0, attempt=lease.attempt)
    closed: list[Any] = []
    with connect(settings, "retry") as other:
        with other.transaction():
            other.execute("UPDATE gleaner.jobs SET state = 'done' WHERE id = %s", [job.id])
            late = threading.Thread(target=lambda: closed.append(close_job(database, job.id)))
            late.start()
            eventually(
                lambda: other.execute("SELECT count(*) AS n FROM pg_locks WHERE NOT granted").fetchone()["n"],
                "the late one waits for the lock",
            )
            corpus = queries.reopen_job(other, job_id=job.id)
            retried = {"job_id": job.id, "corpus_id": corpus, "outcomes": ["failed"], "chunk_size": 2, "span": 100}
            assert queries.recut_chunks(other, **retried) == 2
        late.join()
        assert closed == [None]
        assert other.execute("SELECT state FROM gleaner.jobs").fetchone() == {"state": "queued"}


def test_only_documents_without_a_row_are_halved(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection
) -> None:
    job = enqueue_job(8, 8)
    write_rows(database, claim(keeper, job), 0, 1, 2, 3, 4, 6)
    database.execute(
        "UPDATE gleaner.chunks SET state = 'quarantined', alone = true, failures_alone = 1, last_error = 'died',"
        " lease_owner = NULL"
    )
    assert decisions(reconcile()) == [Decision.HALVED, Decision.PUBLISHED]  # one message was left, for two chunks
    assert [(chunk["first_ordinal"], chunk["last_ordinal"]) for chunk in job.chunks()] == [(0, 6), (7, 7)]
    assert job.ledger()["balanced"]


def test_messages_that_the_broker_forgot_are_published_once(
    enqueue_job: EnqueueJob,
    keeper: LeaseKeeper,
    reconcile: Reconcile,
    empty_queue: Callable[[], None],
    app: Celery,
    settings: Settings,
) -> None:
    job = enqueue_job(50, 10)
    claim(keeper, job)
    empty_queue()
    (act,) = reconcile()
    assert (act.decision, act.model, act.count) == (Decision.PUBLISHED, settings.model, 4)
    assert act.reason == "4 chunks waited without a message"
    assert queued_messages(app, settings.model) == 4
    for _ in range(3):
        assert reconcile() == []
    assert queued_messages(app, settings.model) == 4


def test_nothing_is_published_for_a_paused_job(
    enqueue_job: EnqueueJob, reconcile: Reconcile, empty_queue: Callable[[], None], database: Connection
) -> None:
    job = enqueue_job(20, 10)
    queries.pause_job(database, job_id=job.id, reason="x")
    empty_queue()
    assert reconcile() == []
    queries.resume_job(database, job_id=job.id)
    assert decisions(reconcile()) == [Decision.PUBLISHED]


def test_a_job_that_is_being_cancelled_is_closed_when_its_lease_runs_out(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, reconcile: Reconcile, database: Connection
) -> None:
    job = enqueue_job(30, 10)
    write_rows(database, claim(keeper, job), 0, 1)
    queries.request_cancel(database, job_id=job.id)
    (closed,) = reconcile()
    assert (closed.decision, closed.job_id, closed.count) == (Decision.CANCELLED, job.id, 2)
    assert job.state() == "cancelling"
    assert reconcile() == []
    expire(database)
    assert decisions(reconcile()) == [Decision.TAKEN_OVER, Decision.CANCELLED, Decision.ENDED]
    ledger = job.ledger()
    assert (job.state(), ledger["balanced"], ledger["ok"], ledger["cancelled"]) == ("cancelled", True, 2, 28)


def test_a_job_whose_last_worker_died_before_its_end_is_ended(
    enqueue_job: EnqueueJob, reconcile: Reconcile, keeper: LeaseKeeper, database: Connection
) -> None:
    job = enqueue_job(2, 2)
    lease = claim(keeper, job)
    write_rows(database, lease, 0, 1)
    assert queries.finish_chunk(database, job_id=job.id, chunk_no=0, attempt=lease.attempt)["finished"]
    (act,) = reconcile()
    assert (act.decision, act.job_id) == (Decision.ENDED, job.id)
    assert act.reason == "no chunk of it is open: it is done"
    job.require_whole()


def test_a_queue_that_nobody_takes_from_is_said(
    enqueue_job: EnqueueJob,
    keeper: LeaseKeeper,
    settings: Settings,
    app: Celery,
    database: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producer.reconciler.UNATTENDED_S", 0.0)
    job = enqueue_job(30, 10)
    acts: list[Act] = []
    reconciler = Reconciler(settings, app, acts.append)
    reconciler.one_pass(database)
    assert acts == []  # it has only just looked
    reconciler.one_pass(database)
    (act,) = acts
    assert (act.decision, act.model, act.count) == (Decision.UNATTENDED, settings.model, 3)
    assert "3 chunks and 3 messages wait, and nobody has taken one for" in act.reason
    assert "is a worker for this model running?" in act.reason
    claim(keeper, job)
    reconciler.one_pass(database)
    reconciler.one_pass(database)
    assert len(acts) == 1  # somebody has


def test_a_broker_that_is_away_keeps_nothing_else_from_being_done(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, settings: Settings, database: Connection
) -> None:
    job = enqueue_job(20, 10)
    claim(keeper, job)
    expire(database)
    away = settings.model_copy(update={"broker_url": SecretStr("redis://127.0.0.1:1/0")})
    acts: list[Act] = []
    with create_app(away) as app:
        assert reconcile_once(away, app, acts.append)
    assert decisions(acts) == [Decision.TAKEN_OVER, Decision.UNREACHABLE]
    assert acts[-1].reason.startswith("broker: the broker at 127.0.0.1:1 went away")


def test_a_lost_connection_to_postgres_is_renewed_and_leases_get_time_first(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, settings: Settings, app: Celery, database: Connection
) -> None:
    job = enqueue_job(20, 10)
    acts: list[Act] = []
    stop = threading.Event()
    quick = settings.model_copy(update={"reconcile_s": 0.1, "lease_s": 15})
    thread = threading.Thread(target=Reconciler(quick, app, acts.append).run, args=(stop, lambda: None))
    thread.start()
    try:
        backends = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name = 'gleaner producer reconcile' AND datname = current_database()"
        )
        (backend,) = eventually(lambda: database.execute(backends).fetchall(), "the reconciler's connection")
        # Postgres was away: a worker could not renew what it holds.
        claim(keeper, job)
        with database.transaction():
            database.execute("SELECT pg_terminate_backend(%(pid)s)", backend)
            expire(database)
        eventually(lambda: acts, "word of the lost connection")
        assert acts[0].decision == Decision.UNREACHABLE
        renewed = eventually(
            lambda: [row for row in database.execute(backends).fetchall() if row != backend], "another connection"
        )
        assert len(renewed) == 1
        assert job.chunks()[0]["state"] == "running"
        eventually(lambda: job.chunks()[0]["state"] == "queued", "the takeover, a third of a lease later")
        assert decisions(acts) == [Decision.UNREACHABLE, Decision.TAKEN_OVER]
    finally:
        stop.set()
        thread.join()


def test_a_second_reconciler_stands_by_and_takes_over(
    enqueue_job: EnqueueJob,
    start_cli: Callable[..., Any],
    run_cli: Callable[..., Any],
    keeper: LeaseKeeper,
    database: Connection,
) -> None:
    job = enqueue_job(20, 10)
    quick = {"GLEANER_RECONCILE_S": "0.2"}
    first = start_cli("reconcile", "--json", env=quick)
    locks = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
    eventually(lambda: database.execute(locks).fetchall(), "the first one's lock")
    second = start_cli("reconcile", "--json", env=quick)
    assert second.stderr.readline() == "another reconciler is at work: standing by\n"
    once = run_cli("reconcile", "--once")
    assert (once.returncode, once.stdout) == (0, "")
    assert once.stderr == "another reconciler is at work: nothing to do here\n"

    first.send_signal(signal.SIGKILL)
    first.wait()
    claim(keeper, job)
    expire(database)
    act = json.loads(second.stdout.readline())
    assert (act["decision"], act["job_id"], act["chunk_no"]) == ("taken over", job.id, 0)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=30) == 0
    assert job.chunks()[0]["failures"] == 1


def test_no_postgres_at_the_start_is_an_error(call_cli: Callable[..., Any]) -> None:
    done = call_cli("reconcile", env={"GLEANER_DATABASE_URL": "postgresql://gleaner@127.0.0.1:1/gleaner"})
    assert done.returncode == 1
    assert "no connection to Postgres" in done.stderr
