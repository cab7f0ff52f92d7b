"""A corpus into Postgres, all of it or nothing, by COPY in constant memory."""

import json
import tempfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import IO, Any

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from producer.progress import Progress
from producer.readers import Reader
from producer.records import Document, FieldMapping, Reject, read_record
from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.jsontext import dump_json, make_storable
from schemas.outcomes import RejectCode
from schemas.settings import Settings

#: Raise it when the same records would become other documents: an old corpus is then not taken for the new one.
DOCUMENT_FORMAT = 1
#: Bytes of rejects kept in memory before they go to a temporary file.
_SPOOL_BYTES = 8 * 1024 * 1024
#: Duplicates fetched, and taken out, at a time.
_FETCH_ROWS = 1000
_COPY_DOCUMENTS = "COPY gleaner.documents (corpus_id, ordinal, external_id, text, meta, content_hash, flags) FROM STDIN"
_COPY_REJECTS = "COPY gleaner.corpus_rejects (corpus_id, position, line, code, reason, excerpt) FROM STDIN"


@dataclass(frozen=True)
class Corpus:
    """A loaded corpus. ``created`` is False when it was there already."""

    id: int
    name: str
    documents: int
    rejected: int
    created: bool


@dataclass
class _Lines:
    """The line of each record, from where blank lines shift the count: 16 bytes for each run of blank lines."""

    positions: "array[int]" = field(default_factory=lambda: array("q"))
    shifts: "array[int]" = field(default_factory=lambda: array("q"))

    def note(self, position: int, line: int) -> None:
        shift = line - position
        if not self.shifts or self.shifts[-1] != shift:
            self.positions.append(position)
            self.shifts.append(shift)

    def line_of(self, position: int) -> int:
        return position + self.shifts[bisect_right(self.positions, position) - 1]


@dataclass
class _Rejects:
    """Rejects on their way: COPY of documents holds the connection, so they wait in a file."""

    spool: IO[str]
    codes: Counter[RejectCode] = field(default_factory=Counter)
    first: tuple[int, Reject] | None = None

    def add(self, position: int, line: int, reject: Reject) -> None:
        self.codes[reject.code] += 1
        self.first = self.first or (line, reject)
        self.spool.write(dump_json([position, line, reject.code, reject.reason, reject.excerpt]) + "\n")

    def rows(self) -> Iterator[list[Any]]:
        self.spool.seek(0)
        for line in self.spool:
            yield json.loads(line)


def fingerprint(reader: Reader, mapping: FieldMapping, settings: Settings, progress: Progress) -> str:
    """What makes two corpora the same: their bytes, how these are read, and the limits that reject records."""
    read = reader.digest(lambda done: progress("reading", done, reader.size))
    limits = [settings.document_max_chars, settings.record_max_bytes]
    parts = [DOCUMENT_FORMAT, reader.format, mapping.id_field, mapping.text_field, limits, read]
    return sha256(dump_json(parts).encode("utf-8", "surrogatepass")).hexdigest()


def load_corpus(
    connection: Connection, reader: Reader, mapping: FieldMapping, name: str, settings: Settings, progress: Progress
) -> Corpus:
    """Load a corpus in one transaction, or find it where it was loaded before.

    Every record becomes one document (its ordinal is the record's position) or one reject. Of records with the same
    id the first is kept.

    :param connection: in autocommit mode. Of two producers that load the same input, the second waits for the first.
    :raises UsageError: when no record could become a document; nothing is kept then.
    :raises GleanerError: when the file changed under it; nothing is kept.
    """
    mark = fingerprint(reader, mapping, settings, progress)
    with connection.transaction():
        # A large file takes longer than any statement of ours may; a crash still ends it all.
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        queries.lock_corpus(connection, fingerprint=mark)
        found = queries.corpus_by_fingerprint(connection, fingerprint=mark)
        if found is not None:
            return Corpus(found["id"], found["name"], found["document_count"], found["rejected_count"], created=False)
        corpus_id = queries.insert_corpus(
            connection,
            name=make_storable(name),
            uri=make_storable(reader.uri),
            fingerprint=mark,
            field_mapping=Jsonb({"id": mapping.id_field, "text": mapping.text_field}),
        )
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, mode="w+", encoding="utf-8", newline="\n") as spool:
            rejects = _Rejects(spool)
            lines, documents = _copy_documents(connection, corpus_id, reader, mapping, settings, rejects, progress)
            documents -= _reject_duplicates(connection, corpus_id, lines, rejects)
            if documents == 0:
                raise _no_document(reader, rejects)
            with connection.cursor().copy(_COPY_REJECTS) as copy:
                for row in rejects.rows():
                    copy.write_row([corpus_id, *row])
        rejected = rejects.codes.total()
        queries.count_corpus(connection, document_count=documents, rejected_count=rejected, corpus_id=corpus_id)
    return Corpus(corpus_id, name, documents, rejected, created=True)


def _copy_documents(
    connection: Connection,
    corpus_id: int,
    reader: Reader,
    mapping: FieldMapping,
    settings: Settings,
    rejects: _Rejects,
    progress: Progress,
) -> tuple[_Lines, int]:
    lines = _Lines()
    documents = 0
    with connection.cursor().copy(_COPY_DOCUMENTS) as copy:
        for position, line, content in reader.records(lambda done: progress("loading", done, reader.size)):
            lines.note(position, line)
            made = (
                content if isinstance(content, Reject) else read_record(content, mapping, settings.document_max_chars)
            )
            if isinstance(made, Document):
                flags = "{" + ",".join(made.flags) + "}"
                copy.write_row([corpus_id, position, made.external_id, made.text, made.meta, made.content_hash, flags])
                documents += 1
            else:
                rejects.add(position, line, made)
    return lines, documents


def _reject_duplicates(connection: Connection, corpus_id: int, lines: _Lines, rejects: _Rejects) -> int:
    count = 0
    with connection.cursor("duplicates", row_factory=dict_row) as cursor:
        cursor.execute(queries.duplicate_documents.sql, {"corpus_id": corpus_id})
        while twins := cursor.fetchmany(_FETCH_ROWS):
            for twin in twins:
                first = lines.line_of(twin["first_ordinal"])
                reason = f"the id {twin['external_id']!r} is that of line {first} already"
                reject = Reject.of(RejectCode.DUPLICATE_ID, reason, twin["excerpt"])
                rejects.add(twin["ordinal"], lines.line_of(twin["ordinal"]), reject)
            queries.delete_documents(connection, corpus_id=corpus_id, ordinals=[twin["ordinal"] for twin in twins])
            count += len(twins)
    return count


def _no_document(reader: Reader, rejects: _Rejects) -> UsageError:
    if rejects.first is None:
        return UsageError(f"{reader.uri} holds no record: a corpus needs at least one document")
    counts = ", ".join(f"{count} {code}" for code, count in rejects.codes.most_common())
    line, reject = rejects.first
    return UsageError(
        f"no record of {reader.uri} can be a document ({counts}). The first, on line {line}: {reject.reason}."
    )
