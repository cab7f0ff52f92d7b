"""Which errors of Postgres are tried again, by SQLSTATE: made by a trigger on the rows, a number of times each."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from worker_process import EnqueueJob, StartWorker, eventually

from schemas.database import Connection, queries
from schemas.queue import ChunkMessage, create_app, publish
from schemas.settings import load_settings

#: Pass by themselves.
TRANSIENT = {
    "08000": "connection exception",
    "08003": "connection does not exist",
    "08006": "connection failure",
    "40001": "serialization failure",
    "40P01": "deadlock",
    "53000": "insufficient resources",
    "53100": "disk full",
    "53200": "out of memory",
    "53300": "too many connections",
    "57014": "statement timeout",
    "57P01": "admin shutdown",
    "57P02": "crash shutdown",
    "57P03": "the server starts up",
    "58000": "system error",
    "58030": "input or output error",
    "25006": "read-only transaction",
    "25P03": "idle in transaction",
    "25P04": "transaction timeout",
    "55006": "object in use",
    "55P03": "lock not available",
}
#: Stay, whoever tries again.
LASTING = {
    "23502": "not null",
    "23505": "unique",
    "23514": "check",
    "55000": "object not in prerequisite state",
    "XX001": "data corrupted",
}
#: Would come for every chunk, until a person has mended it.
FOR_A_PERSON = {"42501": "insufficient privilege", "42P01": "undefined table"}
#: About one value.
REFUSED = {"22P05": "untranslatable character", "54000": "program limit exceeded", "54001": "statement too complex"}

#: Documents a chunk: each chunk meets one kind of error.
SIZE = 4
#: Times that each error comes.
TIMES = 2


def _fail(database: Connection, codes: dict[str, str], condition: str) -> None:
    """Rows of chunk n that meet a condition raise the n-th code.

    The count is a sequence a code, because a sequence is not rolled back with the rest.
    """
    for number in range(len(codes)):
        database.execute(sql.SQL("CREATE SEQUENCE {}").format(sql.Identifier("gleaner", f"times_{number}")))
    statement = """
        CREATE FUNCTION gleaner.fail() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE number bigint := NEW.ordinal / {size};
        BEGIN
            IF {condition} THEN
                RAISE EXCEPTION 'made by the test' USING ERRCODE = ({codes}::text[])[number + 1];
            END IF;
            RETURN NEW;
        END $$"""
    database.execute(
        sql.SQL(statement).format(
            size=sql.Literal(SIZE),
            condition=sql.SQL(condition),
            codes=sql.Literal(list(codes)),  # type: ignore[arg-type]
        )
    )
    database.execute("CREATE TRIGGER fail BEFORE INSERT ON gleaner.labels FOR EACH ROW EXECUTE FUNCTION gleaner.fail()")


#: The first times for each chunk.
FIRST_TIMES = f"nextval('gleaner.times_' || number) <= {TIMES}"


def test_what_passes_is_tried_again_under_the_same_lease(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, TRANSIENT, FIRST_TIMES)
    worker = start_worker()
    job = enqueue_job(len(TRANSIENT) * SIZE, SIZE)
    eventually(job.done, "the job's end")
    job.require_whole()
    attempts = {name: chunk["attempt"] for name, chunk in zip(TRANSIENT.values(), job.chunks(), strict=True)}
    assert attempts == dict.fromkeys(TRANSIENT.values(), 1)
    assert {chunk["failures"] for chunk in job.chunks()} == {0}
    for number in range(len(TRANSIENT)):
        count = database.execute(
            sql.SQL("SELECT last_value FROM {}").format(sql.Identifier("gleaner", f"times_{number}"))
        ).fetchone()
        assert count is not None
        assert count["last_value"] == TIMES + SIZE
    assert worker.terminate() == 0


def test_what_stays_costs_the_chunk_a_failure_each_time(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, LASTING, FIRST_TIMES)
    worker = start_worker(chunk_max_failures=TIMES + 1)
    job = enqueue_job(len(LASTING) * SIZE, SIZE)
    eventually(job.done, "the job's end")
    job.require_whole()
    failures = {name: chunk["failures"] for name, chunk in zip(LASTING.values(), job.chunks(), strict=True)}
    assert failures == dict.fromkeys(LASTING.values(), TIMES)
    assert {chunk["attempt"] for chunk in job.chunks()} == {TIMES + 1}
    assert worker.terminate() == 0


@pytest.mark.parametrize("code", FOR_A_PERSON)
def test_what_a_person_must_mend_pauses_the_job(
    code: str, start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, {code: FOR_A_PERSON[code]}, FIRST_TIMES)
    worker = start_worker()
    job = enqueue_job(SIZE, SIZE)
    settings = load_settings()
    for _ in range(TIMES):
        eventually(lambda: job.state() == "paused", "the pause")
        eventually(lambda: job.chunks()[0]["lease_owner"] is None, "the chunk is given back")
        reason = queries.job_control(database, job_id=job.id)["state_reason"]
        assert reason.startswith("refused by ")
        assert "made by the test" in reason
        queries.resume_job(database, job_id=job.id)
        with create_app(settings) as app:
            publish(app, settings.model, [ChunkMessage(job_id=job.id, chunk_no=0, first_ordinal=0, last_ordinal=3)])
    eventually(job.done, "the job's end")
    job.require_whole()
    assert job.chunks()[0]["failures"] == 0
    assert worker.terminate() == 0


def test_a_refused_value_costs_its_row_alone(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, REFUSED, f"NEW.outcome = 'ok' AND NEW.ordinal % {SIZE} = 1")
    worker = start_worker()
    job = enqueue_job(len(REFUSED) * SIZE, SIZE)
    eventually(job.done, "the job's end")
    ledger = job.ledger()
    assert (ledger["ok"], ledger["invalid"], ledger["balanced"]) == (len(REFUSED) * (SIZE - 1), len(REFUSED), True)
    assert {chunk["failures"] for chunk in job.chunks()} == {0}
    assert worker.terminate() == 0


def test_a_row_that_is_refused_without_its_label_fails_its_chunk(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, {"22P05": "untranslatable character"}, "NEW.ordinal = 1")
    start_worker()
    job = enqueue_job(SIZE, SIZE)
    eventually(lambda: job.chunks()[0]["failures"], "the chunk's failure")
    assert "made by the test" in job.chunks()[0]["last_error"]


def test_what_does_not_pass_in_time_goes_back_and_is_nobodys_fault(
    start_worker: StartWorker, enqueue_job: EnqueueJob, database: Connection
) -> None:
    _fail(database, {"53100": "disk full"}, "true")
    worker = start_worker(retry_s=0.3)
    job = enqueue_job(SIZE, SIZE)
    eventually(lambda: job.chunks()[0]["attempt"] > 2, "the chunk is given back, and taken again")
    assert "made by the test" in job.chunks()[0]["last_error"]
    database.execute("DROP TRIGGER fail ON gleaner.labels")
    eventually(job.done, "the job's end")
    job.require_whole()
    assert job.chunks()[0]["failures"] == 0
    assert worker.terminate() == 0


@contextmanager
def _write_lock(url: str) -> Iterator[None]:
    """Nobody writes rows meanwhile."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE gleaner.labels IN SHARE MODE")
        yield


def test_statements_that_time_out(start_worker: StartWorker, enqueue_job: EnqueueJob, database_url: str) -> None:
    worker = start_worker(database_statement_timeout_s=1)
    with _write_lock(database_url):
        job = enqueue_job(SIZE, SIZE)
        eventually(lambda: worker.log().count("statement timeout") > 1, "two statements time out")
    eventually(job.done, "the job's end")
    job.require_whole()
    assert [(chunk["attempt"], chunk["failures"]) for chunk in job.chunks()] == [(1, 0)]
    assert worker.terminate() == 0
