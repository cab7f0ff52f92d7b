"""The tables of the Postgres schema ``gleaner``. Postgres is the truth; design words are table words."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSON, JSONB
from sqlmodel import Field, SQLModel

from schemas.outcomes import Outcome, RejectCode

SCHEMA = "gleaner"


class JobState(StrEnum):
    """Terminal states (``cancelled``, ``done``) never change back except by ``producer retry``."""

    QUEUED = "queued"  #: chunks cut, none claimed -> running
    RUNNING = "running"  #: first chunk claimed -> done
    PAUSED = "paused"  #: no chunk is claimed, those in work are finished -> queued or running
    CANCELLING = "cancelling"  #: no chunk is claimed, those in work are given back -> cancelled
    CANCELLED = "cancelled"  #: every document has its row, some `cancelled`; final counts frozen
    DONE = "done"  #: every document has its row; final counts frozen


class ChunkState(StrEnum):
    """A chunk is worked by the one worker that holds its lease."""

    QUEUED = "queued"  #: nobody works on it -> running
    RUNNING = "running"  #: leased until lease_until -> done, or queued when given back
    DONE = "done"  #: every document has its row
    CANCELLED = "cancelled"  #: every document has its row, the last of them `cancelled`
    QUARANTINED = "quarantined"  #: went wrong too often: worked on alone, then halved -> running


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    # Text with a check, not a Postgres enum: a new value is then a cheap migration that can be undone.
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class Table(SQLModel):
    """Base of all tables: one metadata, one naming convention, so that migrations can name every constraint."""

    metadata: ClassVar[MetaData] = MetaData(
        schema=SCHEMA,
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        },
    )


def _id() -> Any:
    return Field(default=None, sa_column=Column(BigInteger, Identity(always=True), primary_key=True))


def _now() -> Any:
    return Field(default=None, sa_column=Column(DateTime(timezone=True), nullable=False, server_default=func.now()))


def _moment() -> Any:
    return Field(default=None, sa_type=DateTime(timezone=True))


class Corpus(Table, table=True):
    """An immutable, loaded set of documents."""

    __tablename__ = "corpora"

    id: int | None = _id()
    name: str = Field(sa_type=Text, index=True)
    uri: str = Field(sa_type=Text)
    fingerprint: str = Field(sa_type=Text, unique=True, description="Digest of the bytes and the field mapping.")
    field_mapping: dict[str, Any] = Field(sa_type=JSONB)
    selection: dict[str, Any] = Field(sa_type=JSONB, description="Which records were to be loaded; {} for all.")
    base_id: int | None = Field(
        default=None,
        sa_type=BigInteger,
        foreign_key="gleaner.corpora.id",
        description="The corpus of the same name before it.",
    )
    difference: dict[str, Any] | None = Field(
        default=None, sa_type=JSONB, description="Documents to those of the base."
    )
    document_count: int = Field(sa_type=BigInteger)
    rejected_count: int = Field(sa_type=BigInteger)
    unselected_count: int = Field(sa_type=BigInteger, description="Sound records that were not to be loaded.")
    loaded_at: datetime | None = _now()


class CorpusRemoved(Table, table=True):
    """An id that a corpus of new documents alone has not, but what it was compared with had."""

    __tablename__ = "corpus_removed"

    corpus_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    external_id: str = Field(sa_column=Column(Text, primary_key=True))


class Document(Table, table=True):
    """One text with an id and metadata. ``ordinal`` is the record's position in its corpus, from 0; of a corpus whose
    documents are grouped, their place."""

    __tablename__ = "documents"
    __table_args__ = (Index(None, "corpus_id", "external_id"),)

    # No foreign key: COPY would queue one check a row in memory until its end. Loading writes both in one transaction.
    corpus_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    ordinal: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    external_id: str = Field(sa_type=Text)
    text: str = Field(sa_type=Text)
    meta: dict[str, Any] = Field(sa_type=JSONB)
    content_hash: bytes = Field(sa_type=BYTEA, description="SHA-256 of the text as it was given, UTF-8.")
    flags: list[str] = Field(sa_type=ARRAY(Text))
    original: str | None = Field(
        default=None, sa_type=Text, description="The record as it was, as ASCII JSON, where characters were replaced."
    )


class CorpusReject(Table, table=True):
    """An input record that could not become a document. Positions and ordinals share one count."""

    __tablename__ = "corpus_rejects"
    __table_args__ = (_one_of("code", RejectCode),)

    corpus_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    position: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    line: int = Field(sa_type=BigInteger, description="Where the record starts in its file, from 1.")
    source: str = Field(sa_type=Text, description="Its file, where the corpus has several.")
    code: str = Field(sa_type=Text)
    reason: str = Field(sa_type=Text)
    excerpt: str = Field(sa_type=Text)


class LabelSpecRow(Table, table=True):
    """One frozen version of label schema, prompt, sampling and over-long policy."""

    __tablename__ = "label_specs"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: int | None = _id()
    name: str = Field(sa_type=Text)
    version: int
    digest: str = Field(sa_type=Text, unique=True)
    # json, not jsonb: the order of the properties is the order in which the model writes them.
    json_schema: dict[str, Any] = Field(sa_type=JSON)
    system_prompt: str = Field(sa_type=Text)
    template: str = Field(sa_type=Text)
    sampling: dict[str, Any] = Field(sa_type=JSONB)
    over_long: str = Field(sa_type=Text)
    class_path: str | None = Field(default=None, sa_type=Text)
    created_at: datetime | None = _now()


class EngineRow(Table, table=True):
    """What served rows: engine, version, model, revision, settings. Workers register themselves here."""

    __tablename__ = "engines"

    id: int | None = _id()
    digest: str = Field(sa_type=Text, unique=True)
    info: dict[str, Any] = Field(sa_type=JSONB)
    registered_at: datetime | None = _now()


class Job(Table, table=True):
    """One label spec and one model applied to one corpus."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("corpus_id", "label_spec_id", "model"),
        Index(
            "jobs_live_idx",
            "model",
            "priority",
            postgresql_where=text("state IN ('queued', 'running', 'paused', 'cancelling')"),
        ),
        _one_of("state", JobState),
    )

    id: int | None = _id()
    corpus_id: int = Field(sa_column=Column(BigInteger, ForeignKey("gleaner.corpora.id"), nullable=False))
    label_spec_id: int = Field(
        sa_column=Column(BigInteger, ForeignKey("gleaner.label_specs.id"), nullable=False, index=True)
    )
    model: str = Field(sa_type=Text)
    state: str = Field(sa_type=Text)
    state_reason: str | None = Field(default=None, sa_type=Text, description="Why it is paused.")
    priority: int = Field(default=0, description="Higher goes first; `GLEANER_FAIR_SHARE` keeps the others going.")
    total: int = Field(sa_type=BigInteger, description="Documents of the job.")
    final_counts: dict[str, Any] | None = Field(
        default=None, sa_type=JSONB, description="Rows by outcome, frozen when the job is done."
    )
    forecast: dict[str, Any] | None = Field(default=None, sa_type=JSONB, description="What it was expected to take.")
    submitted_by: str = Field(sa_type=Text)
    created_at: datetime | None = _now()
    started_at: datetime | None = _moment()
    finished_at: datetime | None = _moment()


class Chunk(Table, table=True):
    """A run of consecutive documents of a job: one message. ``attempt`` is the fencing token of its lease."""

    __tablename__ = "chunks"
    __table_args__ = (
        # What is done is by far the most: the statements that look for work never read it.
        Index(
            "chunks_open_idx",
            "job_id",
            "chunk_no",
            postgresql_where=text("state IN ('queued', 'running', 'quarantined')"),
        ),
        Index("chunks_lease_idx", "lease_until", postgresql_where=text("state = 'running'")),
        Index("chunks_quarantined_idx", "job_id", "chunk_no", postgresql_where=text("state = 'quarantined'")),
        _one_of("state", ChunkState),
    )

    job_id: int = Field(sa_column=Column(BigInteger, ForeignKey("gleaner.jobs.id"), primary_key=True))
    chunk_no: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    first_ordinal: int = Field(sa_type=BigInteger)
    last_ordinal: int = Field(sa_type=BigInteger, description="Inclusive.")
    size: int = Field(description="Documents between the two; rejected records leave gaps.")
    state: str = Field(sa_type=Text)
    attempt: int = Field(default=0, description="Claims so far; the fencing token of the present one.")
    failures: int = Field(default=0, description="Times it went wrong, or its worker or engine did.")
    alone: bool = Field(
        default=False,
        sa_column=Column(Boolean, nullable=False, server_default=false()),
        description="Worked on with nothing else at the engine; still set in quarantine, it went wrong that way.",
    )
    failures_alone: int = Field(
        default=0,
        sa_column=Column(Integer, nullable=False, server_default="0"),
        description="Times it went wrong with nothing else at the engine.",
    )
    lease_owner: str | None = Field(default=None, sa_type=Text)
    lease_until: datetime | None = _moment()
    published_at: datetime | None = _moment()
    finished_at: datetime | None = _moment()
    last_error: str | None = Field(default=None, sa_type=Text)
    # Set by a trigger when the chunk is finished, and unset when it is opened again.
    counts: dict[str, Any] | None = Field(default=None, sa_type=JSONB, description="Rows by outcome.")
    reasons: list[dict[str, Any]] | None = Field(
        default=None, sa_type=JSONB, description="Rows not ok by outcome and reason code."
    )


class Label(Table, table=True):
    """A row: the outcome of one document in one job, written once."""

    __tablename__ = "labels"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "chunk_no"], ["gleaner.chunks.job_id", "gleaner.chunks.chunk_no"]),
        _one_of("outcome", Outcome),
        CheckConstraint("(outcome = 'ok') = (label IS NOT NULL)", name="label_when_ok"),
        CheckConstraint("(outcome = 'ok') = (reason_code IS NULL)", name="reason_when_not_ok"),
    )

    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    ordinal: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    chunk_no: int
    outcome: str = Field(sa_type=Text)
    label: dict[str, Any] | None = Field(default=None, sa_type=JSONB)
    reason_code: str | None = Field(default=None, sa_type=Text)
    reason: str | None = Field(default=None, sa_type=Text)
    raw_output: str | None = Field(default=None, sa_type=Text, description="The model's text of a row not ok.")
    confidence: float | None = Field(default=None, description="Empty so far: nothing yet says how sure a label is.")
    finish_reason: str | None = Field(default=None, sa_type=Text)
    prompt_tokens: int | None = None
    dropped_tokens: int = Field(default=0, description="Tokens of an over-long document that the model did not see.")
    parts: int = Field(default=1, description="Parts an over-long document was labelled in; its label is merged.")
    output_tokens: int | None = None
    cached_tokens: int | None = None
    tries: int = Field(default=0, description="Requests to the engine for this row; 0 if it never got there.")
    latency_s: float | None = Field(default=None, description="Submit to last output, all tries together.")
    attempt: int = Field(description="Fencing token under which it was written.")
    worker: str = Field(sa_type=Text)
    # No foreign key: every row of a fleet would take a lock on the same few rows of engines.
    engine_id: int | None = Field(
        default=None, sa_type=BigInteger, description="What served it, in engines; empty if nothing did."
    )
    created_at: datetime | None = _now()


class LabelHistory(Table, table=True):
    """A row that was taken out by ``producer retry``: its document got another."""

    __tablename__ = "label_history"
    __table_args__ = (Index(None, "job_id", "ordinal"),)

    id: int | None = _id()
    job_id: int = Field(sa_type=BigInteger)
    ordinal: int = Field(sa_type=BigInteger)
    row: dict[str, Any] = Field(sa_type=JSONB, description="The row as it stood in labels.")
    retried_at: datetime | None = _now()
