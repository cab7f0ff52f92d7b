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


def test_a_row_that_is_taken_away_is_counted_no_more(call_cli: Callable, database: Connection, job: Job) -> None:
    set_state(database, "done")
    database.execute("DELETE FROM gleaner.labels WHERE ordinal = 1")
    assert counts(database, job) == {**EXPECTED, "invalid": 1, "balanced": False, "reasons": {"over_long": 1}}
    assert "NOT BALANCED" in call_cli("status", str(job.id)).stdout


def test_what_was_changed_behind_our_back_shows_in_an_audit(call_cli: Callable, database: Connection, job: Job) -> None:
    set_state(database, "done")
    database.execute("UPDATE gleaner.labels SET ordinal = 77 WHERE ordinal = 2")
    database.execute("UPDATE gleaner.labels SET ordinal = 78, chunk_no = 2 WHERE ordinal = 1")
    assert "2 invalid" not in call_cli("status", str(job.id)).stdout
    audit = call_cli("status", str(job.id), "--audit")
    assert (audit.returncode, "NOT BALANCED" in audit.stdout) == (1, True)


def test_a_retry_of_some_rows_keeps_every_count(database: Connection, job: Job) -> None:
    for ordinal in (3, 4, 5):
        database.execute(
            "INSERT INTO gleaner.labels SELECT (jsonb_populate_record(NULL::gleaner.labels, to_jsonb(twin) ||"
            " jsonb_build_object('ordinal', %s::int, 'chunk_no', %s::int))).* FROM gleaner.labels AS twin"
            " WHERE ordinal = 2",
            [ordinal, ordinal // 2],
        )
    database.execute("UPDATE gleaner.chunks SET state = 'done'")
    assert counts(database, job)["reasons"] == {"not_json": 1, "over_long": 4}
    queries.recut_chunks(database, job_id=job.id, corpus_id=1, outcomes=["invalid"], chunk_size=3, span=99)
    reopened = counts(database, job)
    assert (reopened["pending"], reopened["ok"], reopened["reasons"], reopened["balanced"]) == (5, 1, {}, True)
    database.execute(
        "INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, attempt, worker, dropped_tokens, parts,"
        " tries) SELECT %s, document.ordinal, chunk.chunk_no, 'ok', '{}', 1, 'w', 0, 1, 1 FROM gleaner.chunks AS chunk"
        " JOIN gleaner.documents AS document ON document.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal"
        " WHERE chunk.chunk_no > 2 AND document.ordinal > 0",
        [job.id],
    )
    database.execute("UPDATE gleaner.chunks SET state = 'done'")
    assert counts(database, job) == {"pending": 0, "ok": 6, "invalid": 0, "balanced": True, "reasons": {}}


def test_rows_go_with_their_half_of_a_chunk(database: Connection, job: Job) -> None:
    database.execute("UPDATE gleaner.chunks SET state = 'quarantined' WHERE chunk_no = 0")
    second = queries.halve_chunk(database, job_id=job.id, chunk_no=0, middle=1)
    assert counts(database, job) == EXPECTED
    database.execute("UPDATE gleaner.chunks SET state = 'done' WHERE chunk_no IN (0, %s)", [second])
    assert counts(database, job) == EXPECTED
    assert frozen(database)[0][0]["ok"] == frozen(database)[second][0]["invalid"] == 1


def test_chunks_that_were_finished_before_the_counts_came_get_them(
    database: Connection, job: Job, settings: Settings
) -> None:
    set_state(database, "done")
    before = frozen(database)
    command.downgrade(alembic_config(settings), "0002")
    command.upgrade(alembic_config(settings), "head")
    assert frozen(database) == before
    assert counts(database, job) == EXPECTED
