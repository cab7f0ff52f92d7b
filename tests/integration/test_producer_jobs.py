"""Label specs are frozen once, chunks cover a corpus exactly, and what is unfinished is published."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from pydantic import SecretStr

from ops.services import Valkey
from producer.jobs import FrozenSpec, Job, create_job, freeze_label_spec
from producer.loader import Corpus, load_corpus
from producer.progress import silent
from producer.publish import publish_waiting
from producer.readers import open_reader
from producer.records import FieldMapping
from schemas.database import Connection, connect, queries
from schemas.errors import BrokerUnavailable
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.queue import PUBLISH_BATCH, create_app, queue_name, queued_messages
from schemas.settings import Settings


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    with create_app(settings) as app:
        yield app


@pytest.fixture
def corpus(database: Connection, settings: Settings, write_corpus: Callable) -> Corpus:
    """23 records: 20 documents, with gaps at the start, in the middle and at the end."""
    rows: list[Any] = [{"id": n, "text": f"text {n}"} for n in range(23)]
    rows[0] = rows[11] = rows[22] = "broken"
    return load(database, settings, write_corpus(rows))


def load(database: Connection, settings: Settings, path: Path) -> Corpus:
    reader = open_reader(str(path), settings)
    return load_corpus(database, reader, FieldMapping("id", "text"), "test", settings, silent)


def spec_of(prompt: str | None = None) -> LabelSpec:
    return load_label_spec("papers", prompt=prompt)[0]


@pytest.fixture
def spec(database: Connection) -> FrozenSpec:
    return freeze_label_spec(database, spec_of())


def chunks_of(database: Connection, job: Job) -> list[dict[str, Any]]:
    return database.execute("SELECT * FROM gleaner.chunks WHERE job_id = %s ORDER BY chunk_no", [job.id]).fetchall()


@pytest.mark.parametrize("size", [1, 3, 7, 19, 20, 21, 256])
def test_chunks_cover_exactly_the_documents(database: Connection, corpus: Corpus, spec: FrozenSpec, size: int) -> None:
    job = create_job(database, corpus, spec, "m", size)
    chunks = chunks_of(database, job)
    assert [chunk["chunk_no"] for chunk in chunks] == list(range(-(-20 // size)))
    assert all(chunk["size"] == size for chunk in chunks[:-1])
    covered = database.execute(
        "SELECT document.ordinal, count(chunk.*) AS chunks FROM gleaner.documents AS document"
        " LEFT JOIN gleaner.chunks AS chunk ON chunk.job_id = %s"
        " AND document.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal"
        " GROUP BY document.ordinal",
        [job.id],
    ).fetchall()
    assert len(covered) == 20
    assert {row["chunks"] for row in covered} == {1}
    for chunk in chunks:
        inside = [row for row in covered if chunk["first_ordinal"] <= row["ordinal"] <= chunk["last_ordinal"]]
        assert len(inside) == chunk["size"]
    ledger = queries.job_ledger(database, job_id=job.id)
    assert (ledger["total"], ledger["pending"], ledger["balanced"]) == (20, 20, True)


def test_a_job_is_one_corpus_one_label_spec_and_one_model(
    database: Connection, corpus: Corpus, spec: FrozenSpec
) -> None:
    first = create_job(database, corpus, spec, "m", 7)
    again = create_job(database, corpus, spec, "m", 5)
    assert (again.id, again.created) == (first.id, False)
    assert len(chunks_of(database, first)) == 3
    other_model = create_job(database, corpus, spec, "other", 7)
    other_spec = create_job(database, corpus, freeze_label_spec(database, spec_of("Another prompt.")), "m", 7)
    assert [first.id, other_model.id, other_spec.id] == [first.id, first.id + 1, first.id + 2]


def test_versions_count_changes_of_a_label_spec(database: Connection) -> None:
    first = freeze_label_spec(database, spec_of())
    second = freeze_label_spec(database, spec_of("Another prompt."))
    again = freeze_label_spec(database, spec_of())
    assert [(spec.version, spec.created) for spec in (first, second, again)] == [(1, True), (2, True), (1, False)]
    assert again.id == first.id
    views = database.execute("SELECT viewname FROM pg_views WHERE schemaname = 'labels' ORDER BY viewname").fetchall()
    assert [view["viewname"] for view in views] == ["papers", "papers_v1", "papers_v2"]


def test_a_view_that_was_dropped_comes_back(database: Connection, spec: FrozenSpec) -> None:
    database.execute("DROP VIEW labels.papers_v1")
    freeze_label_spec(database, spec_of())
    assert queries.view_exists(database, name="papers_v1")


def test_specs_frozen_at_once_get_versions_of_their_own(settings: Settings, database: Connection) -> None:
    def freeze(n: int) -> FrozenSpec:
        with connect(settings, "tests") as connection:
            return freeze_label_spec(connection, spec_of(f"Prompt {n % 4}."))

    with ThreadPoolExecutor(8) as threads:
        frozen = list(threads.map(freeze, range(8)))
    assert sorted({spec.version for spec in frozen}) == [1, 2, 3, 4]
    assert sum(spec.created for spec in frozen) == 4


def messages_of(published: Callable[[], list[dict[str, Any]]]) -> list[int]:
    """Chunk numbers of the messages that wait, in order of publishing."""
    return [int(message["headers"]["kwargsrepr"].split("chunk ")[1].split(",")[0]) for message in published()][::-1]


def test_messages_name_chunks_and_hold_no_text(
    database: Connection, settings: Settings, app: Celery, corpus: Corpus, spec: FrozenSpec, published: Callable
) -> None:
    job = create_job(database, corpus, spec, settings.model, 7)
    assert publish_waiting(database, app, settings, settings.model, silent) == 3
    assert messages_of(published) == [0, 1, 2]
    assert published()[-1]["headers"]["kwargsrepr"] == f"job {job.id}, chunk 0, rows 1-7"
    assert all(chunk["published_at"] for chunk in chunks_of(database, job))


def test_only_what_waits_without_a_message_is_published(
    database: Connection, settings: Settings, app: Celery, corpus: Corpus, spec: FrozenSpec, published: Callable
) -> None:
    job = create_job(database, corpus, spec, settings.model, 4)
    database.execute("UPDATE gleaner.chunks SET state = 'done' WHERE chunk_no = 0")
    database.execute(
        "UPDATE gleaner.chunks SET state = 'running', lease_until = now() + interval '1 minute' WHERE chunk_no = 1"
    )
    database.execute("UPDATE gleaner.chunks SET state = 'quarantined' WHERE chunk_no = 2")
    assert publish_waiting(database, app, settings, settings.model, silent) == 3
    assert messages_of(published) == [2, 3, 4]
    assert publish_waiting(database, app, settings, settings.model, silent) == 0
    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
        client.rpop(settings.broker_key_prefix + queue_name(settings.model))
    assert publish_waiting(database, app, settings, settings.model, silent) == 1
    database.execute("UPDATE gleaner.jobs SET state = 'paused'")
    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
        client.delete(settings.broker_key_prefix + queue_name(settings.model))
    assert publish_waiting(database, app, settings, settings.model, silent) == 0
    database.execute("UPDATE gleaner.jobs SET state = 'running'")
    assert publish_waiting(database, app, settings, settings.model, silent) == 3
    assert job.created


def test_a_broker_that_dies_in_mid_publish_loses_nothing(
    database: Connection, settings: Settings, spec: FrozenSpec, write_corpus: Callable, tmp_path: Path, valkey: Valkey
) -> None:
    documents = 2 * PUBLISH_BATCH + 100
    corpus = load(database, settings, write_corpus([{"id": n, "text": "t"} for n in range(documents)]))
    job = create_job(database, corpus, spec, settings.model, 1)
    with Valkey(tmp_path / "valkey") as mortal:
        mine = settings.model_copy(update={"broker_url": SecretStr(mortal.url), "broker_connect_timeout_s": 1.0})
        with create_app(mine) as app:
            with pytest.raises(BrokerUnavailable) as caught:
                publish_waiting(database, app, mine, mine.model, lambda *_: mortal.kill())
            assert f"Of the chunks {PUBLISH_BATCH:,} were published, nothing is lost" in str(caught.value)
            assert "the same command again" in str(caught.value)
        marked = sum(chunk["published_at"] is not None for chunk in chunks_of(database, job))
        assert marked == PUBLISH_BATCH
        mortal.start()
        with create_app(mine) as app:
            there = queued_messages(app, mine.model)
            assert publish_waiting(database, app, mine, mine.model, silent) == documents - there
            assert queued_messages(app, mine.model) == documents
