"""Counts of a finished chunk are frozen with it, let go when it is opened again, and never hide what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
from alembic import command
from psycopg.types.json import Jsonb

from migrations import alembic_config
from producer.jobs import Job, create_job, freeze_label_spec
from producer.loader import load_corpus
from producer.progress import silent
from producer.readers import open_reader
from producer.records import FieldMapping
from producer.standing import job_standing
from schemas.database import Connection, queries
from schemas.label_spec import load_label_spec
from schemas.settings import Settings


@pytest.fixture
def job(database: Connection, settings: Settings, write_corpus: Callable) -> Job:
    """A job of six documents in chunks of two: the first chunk's rows are there, and one row of the second."""
    reader = open_reader(str(write_corpus([{"id": n, "text": "t"} for n in range(6)])), settings)
    corpus = load_corpus(database, reader, FieldMapping("id", "text"), "test", settings, silent)
    made = create_job(database, corpus, freeze_label_spec(database, load_label_spec("papers")[0]), "m", 2)
    for ordinal, code in ((0, None), (1, "not_json"), (2, "over_long")):
        database.execute(
            "INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, reason_code, attempt, worker,"
            " engine_id, dropped_tokens, parts, tries) VALUES (%s, %s, %s, %s, %s, %s, 1, 'w', 1, 0, 1, 1)",
            [made.id, ordinal, ordinal // 2, "invalid" if code else "ok", None if code else Jsonb({}), code],
        )
    return made


def counts(database: Connection, job: Job) -> dict[str, Any]:
    standing = job_standing(database, job.id)
    reasons = {row["reason_code"]: row["rows"] for row in standing["reasons"]}
    exact = queries.job_ledger(database, job_id=job.id)
    assert standing["ledger"] == exact
    return {**{name: exact[name] for name in ("pending", "ok", "invalid", "balanced")}, "reasons": reasons}


def set_state(database: Connection, state: str) -> None:
    database.execute("UPDATE gleaner.chunks SET state = %s WHERE chunk_no = 0", [state])


def frozen(database: Connection) -> list[Any]:
    rows = database.execute("SELECT counts, reasons FROM gleaner.chunks ORDER BY chunk_no").fetchall()
    return [(row["counts"], row["reasons"]) for row in rows]


EXPECTED = {"pending": 3, "ok": 1, "invalid": 2, "balanced": True, "reasons": {"not_json": 1, "over_long": 1}}


def test_counts_are_the_same_before_and_after_they_are_frozen(database: Connection, job: Job) -> None:
    assert counts(database, job) == EXPECTED
    assert frozen(database) == [(None, None)] * 3
    set_state(database, "done")
    first, *others = frozen(database)
    assert first[0] == {"ok": 1, "invalid": 1, "truncated": 0, "rejected": 0, "failed": 0, "cancelled": 0}
    assert first[1] == [{"outcome": "invalid", "reason_code": "not_json", "rows": 1}]
    assert others == [(None, None)] * 2
    assert counts(database, job) == EXPECTED


def test_a_chunk_that_is_opened_again_lets_its_counts_go(database: Connection, job: Job) -> None:
    set_state(database, "done")
    set_state(database, "queued")
    assert frozen(database) == [(None, None)] * 3
    database.execute("DELETE FROM gleaner.labels WHERE ordinal = 1")
    assert counts(database, job) == {**EXPECTED, "pending": 4, "invalid": 1, "reasons": {"over_long": 1}}


def test_what_is_lost_after_a_chunk_was_finished_shows_in_an_audit(
    call_cli: Callable, database: Connection, job: Job
) -> None:
    set_state(database, "done")
    database.execute("DELETE FROM gleaner.labels WHERE ordinal = 1")
    assert call_cli("status", str(job.id)).returncode == 0
    audit = call_cli("status", str(job.id), "--audit")
    assert audit.returncode == 1
    assert "NOT BALANCED" in audit.stdout


def test_chunks_that_were_finished_before_the_counts_came_get_them(
    database: Connection, job: Job, settings: Settings
) -> None:
    set_state(database, "done")
    before = frozen(database)
    command.downgrade(alembic_config(settings), "0002")
    command.upgrade(alembic_config(settings), "head")
    assert frozen(database) == before
    assert counts(database, job) == EXPECTED
