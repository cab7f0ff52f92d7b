"""A Postgres that restarts, dies, drops connections or answers with errors: rows are held and written once."""

from random import Random

import psycopg
import pytest
from courier import Courier
from fleet import BRIEF, Fleet, eventually, pass_time
from ledger import Enqueue, assert_nothing_lost

from ops.services import Postgres

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 40
SLOTS = 2
DOCUMENTS = 120
CHUNK = 20
#: Rows after which a chunk is still in work for sure.
LATEST = DOCUMENTS - 2 * CHUNK
#: SQLSTATEs by the words with which a trigger raises them.
ERRORS = {
    "forced deadlock": "40P01",
    "forced serialization failure": "40001",
    "forced statement timeout": "57014",
    "forced disk full": "53100",
}
#: Raises each error once, at the given calls of any statement that writes rows or changes chunks. A sequence counts the
#: calls, because no rollback takes them back.
TRIGGER = """
    CREATE TABLE public.forced (call bigint PRIMARY KEY, words text NOT NULL, code text NOT NULL);
    CREATE SEQUENCE public.calls;
    CREATE FUNCTION public.force() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE this bigint := nextval('public.calls'); error record;
    BEGIN
        SELECT * INTO error FROM public.forced WHERE call = this;
        IF FOUND THEN RAISE EXCEPTION '%%', error.words USING ERRCODE = error.code; END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER force AFTER INSERT ON gleaner.labels FOR EACH STATEMENT EXECUTE FUNCTION public.force();
    CREATE TRIGGER force AFTER UPDATE ON gleaner.chunks FOR EACH STATEMENT EXECUTE FUNCTION public.force();
"""


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_postgres_goes_away_and_comes_back(
    how: str, chance: Random, own_postgres: Postgres, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    if how == "killed":
        own_postgres.kill()
    else:
        own_postgres.stop()
    pass_time(chance.uniform(0, 1))
    own_postgres.start()
    job.wait_for_end()
    assert worker.endings == []
    assert_nothing_lost(job, courier)


def test_postgres_is_away_for_longer_than_a_lease(
    chance: Random, own_postgres: Postgres, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    workers = [fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED / 2) for _ in range(2)]
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    own_postgres.kill()
    pass_time(float(BRIEF["LEASE_S"]) + chance.uniform(0.5, 2))
    own_postgres.start()
    job.wait_for_end()
    assert [worker.endings for worker in workers] == [[], []]
    assert_nothing_lost(job, courier)


def test_connections_are_terminated(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    members = [fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED), fleet.reconciler()]
    job = enqueue(DOCUMENTS, CHUNK)
    for rows in sorted(chance.sample(range(1, LATEST), 4)):
        job.wait_for_rows(rows)
        eventually(
            lambda: job.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND (application_name LIKE 'gleaner worker%%' OR application_name = 'gleaner producer reconcile')"
            ),
            "connections are there to be terminated",
        )
    job.wait_for_end()
    assert [member.endings for member in members] == [[], []]
    assert_nothing_lost(job, courier)


def test_errors_of_every_class(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    job = enqueue(DOCUMENTS, CHUNK // 2)
    job.ask(TRIGGER)
    # Each chunk takes three calls at least: claimed, written, finished.
    calls = chance.sample(range(1, 3 * len(job.chunks())), 3 * len(ERRORS))
    for call, (words, code) in zip(calls, 3 * list(ERRORS.items()), strict=True):
        job.ask(
            "INSERT INTO public.forced (call, words, code) VALUES (%(call)s, %(words)s, %(code)s)",
            call=call, words=words, code=code,
        )  # fmt: skip
    worker, reconciler = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED), fleet.reconciler()
    job.wait_for_end()
    assert reconciler.endings == []
    assert set(worker.endings) <= {1}  # one that meets an error as it starts says so and is started again
    said = worker.log + reconciler.log
    assert all(words in said for words in ERRORS)
    assert_nothing_lost(job, courier)


def test_deadlocks_are_forced(
    chance: Random, postgres: Postgres, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    worker = fleet.worker(slots=3, stub_rows_per_s=SPEED / 2, lease_s=6)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, DOCUMENTS // 3)
    eventually(lambda: job.held() == 3, "three leases are renewed together")
    job.wait_for_rows(chance.randint(1, 10))
    database = job.ask("SELECT current_database() AS name")[0]["name"]

    def waits(statement: str) -> bool:
        """Whether a statement of the worker's waits for a lock."""
        return bool(
            job.ask(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'gleaner worker%%'"
                " AND datname = current_database() AND wait_event_type = 'Lock' AND query LIKE %(statement)s",
                statement=f"%{statement}%",
            )
        )

    def deadlocks() -> int:
        return worker.log.count("deadlock detected")

    def meet(first: str, then: str, waiting: str, **parameters: int) -> None:
        """Lock what a statement of the worker's will wait for, then want what it holds by then."""
        before = deadlocks()
        with psycopg.connect(postgres.superuser_url, dbname=database) as session:
            # The worker's wait begins first and its patience ends first: it is the one that Postgres turns down.
            session.execute("SET deadlock_timeout = '60s'")
            session.execute(first, {"job": job.id, **parameters})
            eventually(lambda: waits(waiting), "the worker waits for the test's lock")
            session.execute(then, {"job": job.id, **parameters})
            session.rollback()
        eventually(lambda: deadlocks() > before, "the worker has met a deadlock")

    chunk = "SELECT FROM gleaner.chunks WHERE job_id = %(job)s AND chunk_no = %(chunk_no)s FOR UPDATE"
    # Renewing locks chunks 0, 1, 2 in this order, and waits for none longer than a sixth of the lease.
    with psycopg.connect(postgres.superuser_url, dbname=database) as session:
        session.execute(chunk, {"job": job.id, "chunk_no": 2})
        eventually(lambda: "leases not renewed" in worker.log, "renewing gives up")
        session.rollback()
    # Writing locks its chunk, then the keys of its rows.
    begun = eventually(
        lambda: job.ask(
            "SELECT chunk_no, max(ordinal) + 3 AS ordinal FROM gleaner.labels WHERE job_id = %(job)s GROUP BY chunk_no"
            " HAVING count(*) BETWEEN 1 AND %(size)s - 10",
            size=DOCUMENTS // 3,
        ),
        "a chunk is begun",
    )[0]
    row = """
        INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, reason_code, dropped_tokens, parts, tries,
            attempt, worker)
        VALUES (%(job)s, %(ordinal)s, %(chunk_no)s, 'failed', 'poison', 0, 1, 0, 0, 'test')
    """
    meet(row, chunk, "INTO gleaner.labels", **begun)
    job.wait_for_end()
    assert worker.endings == []
    assert_nothing_lost(job, courier)
