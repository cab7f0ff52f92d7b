"""A chunk of large documents is worked on page by page, so that memory holds one page of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_process import JobView, StartWorker, eventually

from schemas.database import Connection, queries

SIZE = 1000
#: Holds three documents: the third begins before its end.
PAGE = 2 * SIZE + 1


@pytest.fixture
def job(run_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection) -> JobView:
    """One chunk of ten documents of a thousand bytes, the sixth ten times as large; with a title of a hundred."""
    sizes = [SIZE] * 10
    sizes[5] *= 10
    corpus = write_corpus([{"id": n, "text": "x" * size, "title": "t" * 100} for n, size in enumerate(sizes)])
    result = run_cli("enqueue", corpus, "--schema", "packages", "--over-long", "truncate-tail", "--json")
    return JobView(database, json.loads(result.stdout)["job_id"])


def page(database: Connection, job: JobView, first: int, max_bytes: int, *, with_meta: bool = False) -> list[Any]:
    asked = {"corpus_id": 1, "job_id": job.id, "first_ordinal": first, "last_ordinal": 9}
    documents = list(queries.open_documents(database, **asked, with_meta=with_meta, max_bytes=max_bytes))
    assert {document["open"] for document in documents} == {10 - first}
    return [document["ordinal"] for document in documents]


def test_a_page_ends_with_the_document_that_fills_it(database: Connection, job: JobView) -> None:
    assert page(database, job, 0, PAGE) == [0, 1, 2]
    assert page(database, job, 3, PAGE) == [3, 4, 5]  # the large one
    assert page(database, job, 5, PAGE) == [5]
    assert page(database, job, 6, 10 * SIZE) == [6, 7, 8, 9]
    assert page(database, job, 0, 1) == [0]


def test_metadata_counts_where_it_is_read(database: Connection, job: JobView) -> None:
    assert page(database, job, 0, 2 * SIZE, with_meta=False) == [0, 1]
    assert page(database, job, 0, 2 * SIZE + 150, with_meta=False) == [0, 1, 2]
    assert page(database, job, 0, 2 * SIZE + 150, with_meta=True) == [0, 1]


def test_a_page_is_written_before_the_next_is_begun(job: JobView, start_worker: StartWorker) -> None:
    # Neither a full batch nor its age writes a row. The engine hangs in the second page, after the canary and 4 rows.
    hanging = start_worker(page_max_bytes=PAGE, stub_hangs_after_rows=1 + 4, write_batch_rows=100, write_interval_s=600)
    eventually(lambda: job.rows() == 3, "the first page is written, and no more")
    assert hanging.terminate() == 0
    kept = job.rows()
    assert kept in (3, 4)  # it may be told before the fourth is finished
    worker = start_worker(page_max_bytes=PAGE)
    eventually(job.done, "the job is done")
    assert worker.terminate() == 0
    job.require_whole()
    assert [row["attempt"] for row in job.labels()] == [1] * kept + [2] * (10 - kept)
