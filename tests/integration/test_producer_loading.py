"""A corpus is loaded wholly or not at all, once, and every record is a document or a reject."""

import json
import random
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from producer import duplicates, loader
from producer.loader import Corpus, load_corpus
from producer.progress import silent
from producer.readers import open_reader
from producer.records import FieldMapping
from schemas.database import Connection
from schemas.errors import GleanerError, UsageError
from schemas.settings import Settings

MAPPING = FieldMapping("id", "text")


@pytest.fixture
def load(database: Connection, settings: Settings) -> Callable[..., Corpus]:
    def call(path: Path, mapping: FieldMapping = MAPPING, settings: Settings = settings, progress=silent) -> Corpus:
        reader = open_reader(str(path), settings)
        return load_corpus(database, reader, mapping, "test", settings, progress)

    return call


def documents_of(database: Connection, corpus: Corpus) -> list[dict[str, Any]]:
    return database.execute(
        "SELECT ordinal, external_id, text, meta, content_hash, flags FROM gleaner.documents WHERE corpus_id = %s"
        " ORDER BY ordinal",
        [corpus.id],
    ).fetchall()


def rejects_of(database: Connection, corpus: Corpus) -> list[tuple[int, int, str, str]]:
    rows = database.execute(
        "SELECT position, line, code, reason FROM gleaner.corpus_rejects WHERE corpus_id = %s ORDER BY position",
        [corpus.id],
    )
    return [(row["position"], row["line"], row["code"], row["reason"]) for row in rows]


def assert_nothing_kept(database: Connection) -> None:
    for name in ("corpora", "documents", "corpus_rejects", "label_specs", "jobs", "chunks"):
        found = database.execute(f"SELECT count(*) AS n FROM gleaner.{name}").fetchone()  # type: ignore[arg-type]
        assert found == {"n": 0}, name


def test_every_record_is_a_document_or_a_reject(database: Connection, load: Callable, write_corpus: Callable) -> None:
    corpus = load(
        write_corpus(
            [
                {"id": "a", "text": "first", "year": 1999, "tags": ["x"]},
                "not json",
                "",
                {"id": "b", "text": " t "},
                {"id": "c"},
                {"id": "e", "text": ""},
                '{"id": "d", "text": "n\\u0000l \\ud83d", "m": {"\\u0000": "\\udfff"}}',
                {"id": 7, "text": "tab\t newline\n backslash \\ \\N quote '\" {braces} é 漢 🜁"},
            ]
        )
    )
    assert (corpus.documents, corpus.rejected, corpus.created) == (4, 3, True)
    a, b, d, seven = documents_of(database, corpus)
    assert a == {
        "ordinal": 0,
        "external_id": "a",
        "text": "first",
        "meta": {"year": 1999, "tags": ["x"]},
        "content_hash": sha256(b"first").digest(),
        "flags": [],
    }
    assert (b["ordinal"], b["text"]) == (2, " t ")
    assert (d["ordinal"], d["text"], d["meta"]) == (5, "n\ufffdl \ufffd", {"m": {"\ufffd": "\ufffd"}})
    assert d["flags"] == ["nul_replaced", "surrogate_replaced"]
    assert d["content_hash"] == sha256("n\x00l \ud83d".encode("utf-8", "surrogatepass")).digest()
    assert seven["external_id"] == "7"
    assert seven["text"] == "tab\t newline\n backslash \\ \\N quote '\" {braces} é 漢 🜁"
    assert [row[:3] for row in rejects_of(database, corpus)] == [
        (1, 2, "invalid_json"),
        (3, 5, "missing_text"),
        (4, 6, "empty"),
    ]
    stored = database.execute("SELECT document_count, rejected_count, field_mapping FROM gleaner.corpora").fetchone()
    assert stored == {"document_count": 4, "rejected_count": 3, "field_mapping": {"id": "id", "text": "text"}}


def test_of_records_with_one_id_the_first_is_kept(
    database: Connection, load: Callable, write_corpus: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "_FETCH_ROWS", 1)
    monkeypatch.setattr(loader, "_SPOOL_BYTES", 10)
    rows = [
        *("", {"id": "a"}, {"id": "a", "text": "kept"}, "", "", {"id": 7, "text": "kept"}),
        *({"id": "a", "text": "second"}, {"id": "b", "text": "kept"}, {"id": "7", "text": "as text"}, "broken"),
        {"id": "a", "text": "third"},
    ]
    corpus = load(write_corpus(rows))
    assert (corpus.documents, corpus.rejected) == (3, 5)
    assert [(row["ordinal"], row["external_id"]) for row in documents_of(database, corpus)] == [
        (1, "a"),
        (2, "7"),
        (4, "b"),
    ]
    assert rejects_of(database, corpus) == [
        (0, 2, "missing_text", "no field 'text'"),
        (3, 7, "duplicate_id", "the id 'a' is that of line 3 already"),
        (5, 9, "duplicate_id", "the id '7' is that of line 6 already"),
        (6, 10, "invalid_json", "Expecting value at character 1 of the line"),
        (7, 11, "duplicate_id", "the id 'a' is that of line 3 already"),
    ]


def test_the_same_input_is_loaded_once(
    database: Connection, load: Callable, write_corpus: Callable, settings: Settings
) -> None:
    path = write_corpus([{"id": "a", "text": "t", "other": "o"}])
    first = load(path)
    copy = write_corpus([{"id": "a", "text": "t", "other": "o"}], name="copy.jsonl")
    again = load(copy)
    assert (again.id, again.created, again.documents) == (first.id, False, 1)
    other_field = load(path, mapping=FieldMapping("id", "other"))
    other_limit = load(path, settings=settings.model_copy(update={"document_max_chars": 10}))
    other_bytes = load(write_corpus([{"id": "a", "text": "t2"}]))
    assert len({first.id, other_field.id, other_limit.id, other_bytes.id}) == 4
    assert len(documents_of(database, first)) == 1


def test_a_corpus_that_was_loaded_with_more_rejects_than_are_allowed_now_is_refused(
    database: Connection, call_cli: Callable, write_corpus: Callable
) -> None:
    call = ["enqueue", write_corpus([{"id": 1, "text": "t"}, "broken", {"id": 1, "text": "t"}]), "--schema", "papers"]
    assert call_cli(*call).returncode == 0
    for options, words in ((["--strict"], "none is allowed"), (["--max-rejects", "1"], "1 is allowed")):
        done = call_cli(*call, *options)
        assert done.returncode == 2
        assert f"2 of 3 records were rejected when corpus 1, corpus, was loaded, {words}" in done.stderr
    assert "loaded, over 50%" in call_cli(*call, "--max-rejects", "50%").stderr
    for enough in ("2", "67%"):
        assert call_cli(*call, "--max-rejects", enough).returncode == 0


def test_a_corpus_without_a_document_is_refused_and_not_kept(
    database: Connection, load: Callable, write_corpus: Callable
) -> None:
    path = write_corpus(["", {"id": 1}, {"id": 2}, "[]"])
    with pytest.raises(UsageError) as caught:
        load(path)
    assert "no record can be a document (2 missing_text, 1 not_an_object)" in str(caught.value)
    assert f"The first, on line 2: no field 'text'. Nothing of {path} was kept." in str(caught.value)
    with pytest.raises(UsageError, match="holds no record"):
        load(write_corpus(["", " "]))
    assert_nothing_kept(database)


def test_a_file_that_changes_as_it_is_loaded_leaves_nothing(
    database: Connection, load: Callable, write_corpus: Callable
) -> None:
    path = write_corpus([{"id": n, "text": "t"} for n in range(100)])

    grown: list[str] = []

    def grow_once(stage: str, done: int, total: int) -> None:
        if stage == "loading" and not grown:
            grown.append(stage)
            with path.open("ab") as file:
                file.write(b'{"id": "new", "text": "t"}\n')

    with pytest.raises(GleanerError, match="changed while it was read: nothing was kept"):
        load(path, progress=grow_once)
    assert_nothing_kept(database)
    assert load(path).documents == 101


def large_corpus(write_corpus: Callable, documents: int) -> Path:
    text = "word " * 60
    return write_corpus([{"id": f"d{n % (documents - 10)}", "text": f"{n} {text}"} for n in range(documents)])


def wait_until_copied(database: Connection, process: Any, rows: int) -> None:
    """Return when another session has copied so many rows, or has ended."""
    while process.poll() is None:
        found = database.execute("SELECT max(tuples_processed) AS n FROM pg_stat_progress_copy").fetchone()
        if found and (found["n"] or 0) >= rows:
            return


def test_a_producer_killed_in_mid_load_leaves_nothing_and_the_next_loads_all(
    database: Connection, load: Callable, write_corpus: Callable, start_cli: Callable, run_cli: Callable
) -> None:
    documents = 30_000
    path = large_corpus(write_corpus, documents)
    chooser = random.Random(2)
    for rows in (1, chooser.randrange(1, documents // 2)):
        process = start_cli("enqueue", path, "--schema", "papers", "--json")
        wait_until_copied(database, process, rows)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.communicate()
        assert_nothing_kept(database)
    done = run_cli("enqueue", path, "--schema", "papers", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["documents"], summary["rejects"]) == (documents - 10, {"duplicate_id": 10})
    found = database.execute("SELECT count(*) AS n, count(DISTINCT external_id) AS ids FROM gleaner.documents")
    assert found.fetchone() == {"n": documents - 10, "ids": documents - 10}


def test_an_interrupted_load_says_so_and_leaves_nothing(
    database: Connection, write_corpus: Callable, start_cli: Callable
) -> None:
    process = start_cli("enqueue", large_corpus(write_corpus, 30_000), "--schema", "papers")
    wait_until_copied(database, process, 1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "interrupted: run the same command again to continue\n"
    assert_nothing_kept(database)


def test_two_producers_of_one_file_at_once_make_one_job(
    database: Connection, write_corpus: Callable, start_cli: Callable
) -> None:
    path = large_corpus(write_corpus, 10_000)
    processes = [start_cli("enqueue", path, "--schema", "papers", "--json") for _ in range(2)]
    summaries = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        summaries.append(json.loads(stdout))
    assert sorted(summary["corpus_loaded"] for summary in summaries) == [False, True]
    assert sorted(summary["created"] for summary in summaries) == [False, True]
    assert len({(s["job_id"], s["corpus_id"], s["version"], s["documents"], s["chunks"]) for s in summaries}) == 1
    counts = database.execute(
        "SELECT (SELECT count(*) FROM gleaner.corpora) AS corpora,"
        " (SELECT count(*) FROM gleaner.documents) AS documents,"
        " (SELECT count(*) FROM gleaner.label_specs) AS specs, (SELECT count(*) FROM gleaner.jobs) AS jobs"
    ).fetchone()
    assert counts == {"corpora": 1, "documents": 9_990, "specs": 1, "jobs": 1}


def test_a_real_corpus_in_gzip_is_loaded_whole(database: Connection, load: Callable, shared_corpus: Callable) -> None:
    corpus = load(shared_corpus("debian.jsonl.gz"))
    assert (corpus.documents, corpus.rejected) == (24_705, 0)
    found = database.execute("SELECT count(*) AS n, min(ordinal) AS first, max(ordinal) AS last FROM gleaner.documents")
    assert found.fetchone() == {"n": 24_705, "first": 0, "last": 24_704}


def test_many_records_with_one_id_load_quickly(database: Connection, load: Callable, write_corpus: Callable) -> None:
    # Statistics of what is there, none of what is being loaded: Postgres then takes the new corpus for one row.
    load(write_corpus([{"id": n, "text": "t"} for n in range(2000)]))
    database.execute("ANALYZE gleaner.documents")
    records = [{"id": "same", "text": "t"}] * 8000
    began = time.monotonic()
    corpus = load(write_corpus(records, name="same.jsonl"))
    assert (corpus.documents, corpus.rejected) == (1, len(records) - 1)
    assert [document["ordinal"] for document in documents_of(database, corpus)] == [0]
    assert time.monotonic() - began < 8  # half a second; each compared with each takes 25


#: What is in the database when a producer is killed, from the first step to the last.
STEPS = (
    "SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed > 500",
    "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE TEMP TABLE twins%%'",
    "SELECT 1 FROM gleaner.corpora",
    "SELECT 1 FROM gleaner.label_specs",
    "SELECT 1 FROM gleaner.jobs",
    "SELECT 1 FROM gleaner.chunks WHERE published_at IS NOT NULL",
)


def test_killed_at_any_step_the_next_call_ends_as_if_nothing_had_been(
    database: Connection, write_corpus: Callable, start_cli: Callable, run_cli: Callable, published: Callable
) -> None:
    documents = 20_000
    call = ["enqueue", large_corpus(write_corpus, documents), "--schema", "papers", "--chunk-size", "2", "--json"]
    for step in STEPS:
        process = start_cli(*call)
        while process.poll() is None and not database.execute(step).fetchall():
            pass
        process.kill()
        process.wait()
    done = run_cli(*call)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["job_id"], summary["documents"], summary["rejects"]) == (1, documents - 10, {"duplicate_id": 10})
    counts = database.execute(
        "SELECT (SELECT count(*) FROM gleaner.corpora) AS corpora,"
        " (SELECT count(*) FROM gleaner.documents) AS documents,"
        " (SELECT count(*) FROM gleaner.label_specs) AS specs, (SELECT count(*) FROM gleaner.jobs) AS jobs,"
        " (SELECT count(*) FROM gleaner.chunks WHERE published_at IS NULL) AS unpublished,"
        " (SELECT sum(size) FROM gleaner.chunks) AS cut"
    ).fetchone()
    assert counts == {
        **{"corpora": 1, "documents": documents - 10, "specs": 1, "jobs": 1},
        **{"unpublished": 0, "cut": documents - 10},
    }
    messages = {message["headers"]["kwargsrepr"] for message in published()}
    assert len(messages) == summary["chunks"] == (documents - 10) // 2
