"""Migrations: up, as the tables say, down, up again; and the ledger view that they make."""

import io
from collections.abc import Callable

import psycopg
import pytest
from alembic import command
from psycopg import sql
from psycopg.types.json import Jsonb
from pydantic import SecretStr

from migrations import alembic_config
from producer.jobs import Job, create_job, freeze_label_spec
from producer.loader import load_corpus
from producer.progress import silent
from producer.readers import open_reader
from producer.records import FieldMapping
from schemas.database import Connection, connect, queries, require_migrated
from schemas.errors import DatabaseNotMigrated
from schemas.label_spec import load_label_spec
from schemas.outcomes import Outcome, Reason
from schemas.settings import Settings
from schemas.tables import Label


def test_up_check_down_up_check(empty_database_url: str, clean_environment: None) -> None:
    settings = Settings(database_url=SecretStr(empty_database_url))
    config = alembic_config(settings)
    config.stdout = io.StringIO()
    with connect(settings, "tests") as connection:
        with pytest.raises(DatabaseNotMigrated, match="revision none"):
            require_migrated(connection)
        for _ in range(2):
            command.upgrade(config, "head")
            command.check(config)
            require_migrated(connection)
            freeze_label_spec(connection, load_label_spec("papers")[0])  # a downgrade takes the views along
            command.downgrade(config, "base")
            left = connection.execute(
                "SELECT table_schema, table_name FROM information_schema.tables"
                " WHERE table_schema IN ('gleaner', 'labels') AND table_name <> 'alembic_version'"
            ).fetchall()
            assert left == []
        with pytest.raises(DatabaseNotMigrated, match="run `producer db upgrade`"):
            require_migrated(connection)


@pytest.fixture
def job(database: Connection, settings: Settings, write_corpus: Callable) -> Job:
    """A job of six documents in chunks of two."""
    reader = open_reader(str(write_corpus([{"id": n, "text": "t"} for n in range(6)])), settings)
    corpus = load_corpus(database, reader, FieldMapping("id", "text"), "test", settings, silent)
    return create_job(database, corpus, freeze_label_spec(database, load_label_spec("papers")[0]), "m", 2)


def write_row(database: Connection, job: Job, ordinal: int, outcome: Outcome, chunk_no: int | None = None) -> None:
    ok = outcome is Outcome.OK
    row = Label(
        job_id=job.id,
        ordinal=ordinal,
        chunk_no=ordinal // 2 if chunk_no is None else chunk_no,
        outcome=outcome,
        label={} if ok else None,
        reason_code=None if ok else Reason.ENGINE_ERROR,
        attempt=1,
        worker="test",
        engine_id=1,
    ).model_dump(exclude_none=True)
    values = [Jsonb(value) if isinstance(value, dict) else value for value in row.values()]
    database.execute(
        sql.SQL("INSERT INTO gleaner.labels ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join([sql.Placeholder()] * len(row))
        ),
        values,
    )


def finish_chunk(database: Connection, chunk_no: int) -> None:
    database.execute("UPDATE gleaner.chunks SET state = 'done' WHERE chunk_no = %s", [chunk_no])


def test_the_ledger_balances_as_rows_come(database: Connection, job: Job) -> None:
    for ordinal, outcome in enumerate(Outcome):
        before = queries.job_ledger(database, job_id=job.id)
        assert (before["balanced"], before["pending"]) == (True, 6 - ordinal)
        write_row(database, job, ordinal, outcome)
        if ordinal % 2:
            finish_chunk(database, ordinal // 2)
    ledger = queries.job_ledger(database, job_id=job.id)
    assert ledger == {"total": 6, "pending": 0, "balanced": True, **dict.fromkeys(Outcome, 1)}


def test_a_finished_chunk_that_lacks_a_row_unbalances_it(database: Connection, job: Job) -> None:
    write_row(database, job, 0, Outcome.OK)
    finish_chunk(database, 0)
    assert queries.job_ledger(database, job_id=job.id)["balanced"] is False


def test_a_row_outside_of_the_chunks_unbalances_it(database: Connection, job: Job) -> None:
    write_row(database, job, 17, Outcome.OK, chunk_no=0)
    assert queries.job_ledger(database, job_id=job.id)["balanced"] is False


def test_a_second_row_of_a_document_is_impossible(database: Connection, job: Job) -> None:
    write_row(database, job, 0, Outcome.OK)
    with pytest.raises(psycopg.errors.UniqueViolation):
        write_row(database, job, 0, Outcome.FAILED)
