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

from psycopg import sql
from psycopg.copy import QueuedLibpqWriter
from psycopg.types.json import Jsonb

from producer.difference import Difference, compare
from producer.duplicates import Duplicates, OnDuplicate
from producer.progress import Progress
from producer.readers import Reader, Record
from producer.records import FieldMapping, Reject, read_record
from producer.selection import Selection, draw
from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.jsontext import dump_json, make_storable, map_strings
from schemas.outcomes import RejectCode
from schemas.printable import counted
from schemas.settings import Settings

#: Raise it when the same records would become other documents: an old corpus is then not taken for the new one.
DOCUMENT_FORMAT = 3
#: Bytes of rejects kept in memory before they go to a temporary file.
_SPOOL_BYTES = 8 * 1024 * 1024
_COLUMNS = sql.SQL("corpus_id, ordinal, external_id, text, meta, content_hash, flags, original")
_COPY_DOCUMENTS = sql.SQL("COPY {table} ({columns}) FROM STDIN")
_COPY_REJECTS = "COPY gleaner.corpus_rejects (corpus_id, position, line, source, code, reason, excerpt) FROM STDIN"
_DOCUMENTS = sql.Identifier("gleaner", "documents")
#: Where documents wait that are not all kept, or not in the order in which they come.
_STAGED = sql.Identifier("pg_temp", "staged")
_CREATE_STAGED = "CREATE TEMP TABLE staged (LIKE gleaner.documents) ON COMMIT DROP"
_KEEP = sql.SQL("INSERT INTO gleaner.documents ({columns}) SELECT {chosen} FROM {staged} ORDER BY ordinal")


@dataclass(frozen=True)
class Corpus:
    """A loaded corpus. ``created`` is False when it was there already.

    :param unselected: records that could be documents but were not selected.
    :param difference: to the corpus before it under its name, if there is one.
    """

    id: int
    name: str
    documents: int
    rejected: int
    created: bool
    unselected: int = 0
    difference: Difference | None = None

    @property
    def nothing_new(self) -> bool:
        """Whether only new documents were asked for and there is none: then this is the corpus compared with."""
        return self.difference is not None and self.difference.base == self.id


@dataclass(frozen=True, slots=True)
class LoadRules:
    """What a user says of records that are wrong or not wanted."""

    on_duplicate: OnDuplicate = OnDuplicate.FIRST
    max_rejects: int | None = None  #: records that may be rejected before the corpus is
    max_reject_share: float | None = None  #: the same as a share of all records, from 0 to 1
    selection: Selection = field(default_factory=Selection)

    def exceeded(self, rejected: int, records: int) -> str | None:
        """How so many rejects among so many records are too many, in words; None when they are not.

        :param records: all of them; 0 while they are not counted yet, when a share can't be exceeded.
        """
        most, share = self.max_rejects, self.max_reject_share
        if most is not None and rejected > most:
            return "none is allowed" if most == 0 else "1 is allowed" if most == 1 else f"{most:,} are allowed"
        if share is not None and records and rejected > share * records:
            return f"over {100 * share:g}%"
        return None


_RULES = LoadRules()


@dataclass
class _Places:
    """Where each record stands: 24 bytes for each run of blank lines and each file, none for a record."""

    positions: "array[int]" = field(default_factory=lambda: array("q"))
    shifts: "array[int]" = field(default_factory=lambda: array("q"))
    sources: list[str] = field(default_factory=list)

    def note(self, position: int, line: int, source: str) -> None:
        """A run begins here."""
        self.positions.append(position)
        self.shifts.append(line - position)
        self.sources.append(source)

    def of(self, position: int) -> tuple[int, str]:
        run = bisect_right(self.positions, position) - 1
        return position + self.shifts[run], self.sources[run]


class _Rejects:
    """Rejects on their way: COPY of documents holds the connection, so they wait in a file."""

    def __init__(self, spool: IO[str], reader: Reader, rules: LoadRules) -> None:
        self._spool = spool
        self._reader = reader
        self._rules = rules
        self.codes: Counter[RejectCode] = Counter()
        self.first: tuple[int, str, Reject] | None = None

    def add(self, position: int, line: int, source: str, reject: Reject) -> None:
        self.codes[reject.code] += 1
        self.first = self.first or (line, source, reject)
        row = [position, line, make_storable(source), reject.code, reject.reason, reject.excerpt]
        self._spool.write(dump_json(row) + "\n")
        if too_many := self._rules.exceeded(self.codes.total(), 0):
            raise self.refusal(f"{self.codes.total():,} rejected so far, {too_many}")

    def rows(self) -> Iterator[list[Any]]:
        self._spool.seek(0)
        for line in self._spool:
            yield json.loads(line)

    def refusal(self, why: str) -> UsageError:
        """The error for a corpus that is refused as a whole."""
        if self.first is None:
            return UsageError(f"{self._reader.uri} holds no record: a corpus needs at least one document")
        counts = ", ".join(f"{count} {code}" for code, count in self.codes.most_common())
        line, source, reject = self.first
        place = f"{self._reader.unit} {line}" + (f" of {source}" if source else "")
        return UsageError(
            f"{why} ({counts}). The first, on {place}: {reject.reason}. Nothing of {self._reader.uri} was kept."
        )


def fingerprint(
    reader: Reader, mapping: FieldMapping, settings: Settings, progress: Progress, rules: LoadRules = _RULES
) -> str:
    """What makes two corpora the same: their bytes, how these are read, and what rejects or leaves out records."""
    read = reader.digest(lambda done: progress("reading", done, reader.size))
    limits = [settings.document_max_chars, settings.record_max_bytes]
    chosen = [rules.on_duplicate, rules.selection.as_json()]
    parts = [DOCUMENT_FORMAT, reader.format, mapping.as_json(), limits, chosen, read]
    return sha256(dump_json(parts).encode("utf-8", "surrogatepass")).hexdigest()


def load_corpus(
    connection: Connection,
    reader: Reader,
    mapping: FieldMapping,
    name: str,
    settings: Settings,
    progress: Progress,
    rules: LoadRules = _RULES,
) -> Corpus:
    """Load a corpus in one transaction, or find it where it was loaded before.

    Every record becomes one document (its ordinal is the record's position, unless documents are grouped), one reject,
    or is not selected.

    :param connection: in autocommit mode. Of two producers that load the same input, the second waits for the first.
    :raises UsageError: when no record could become a document, or too many could not; nothing is kept then.
    :raises GleanerError: when the file changed under it; nothing is kept.
    """
    mark = fingerprint(reader, mapping, settings, progress, rules)
    if rules.selection.only_new:
        mark = sha256(f"{mark} {name}".encode("utf-8", "surrogatepass")).hexdigest()
    with connection.transaction():
        # A large file takes longer than any statement of ours may, and to draw a sample of it longer than a transaction
        # may stand still; a crash still ends it all.
        for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute("SELECT set_config(%s, '0', true)", [limit])
        queries.lock_corpus(connection, fingerprint=mark)
        found = queries.corpus_by_fingerprint(connection, fingerprint=mark)
        if found is not None:
            return _found(found, rules)
        return _Load(connection, reader, mapping, make_storable(name), settings, progress, rules).run(mark)


def _found(row: dict[str, Any], rules: LoadRules) -> Corpus:
    """The corpus as it was loaded before.

    :raises UsageError: when it has more rejects than are allowed now.
    """
    rejected = row["rejected_count"]
    records = row["document_count"] + rejected + row["unselected_count"]
    if too_many := rules.exceeded(rejected, records):
        raise UsageError(
            f"{rejected:,} of {counted(records, 'record')} were rejected when corpus {row['id']}, {row['name']}, was"
            f" loaded, {too_many}. It stays as it was, no job was made."
        )
    difference = Difference(**row["difference"]) if row["difference"] else None
    return Corpus(
        row["id"],
        row["name"],
        row["document_count"],
        row["rejected_count"],
        created=False,
        unselected=row["unselected_count"],
        difference=difference,
    )


class _Load:
    """One corpus on its way, in the transaction that loads it."""

    def __init__(
        self,
        connection: Connection,
        reader: Reader,
        mapping: FieldMapping,
        name: str,
        settings: Settings,
        progress: Progress,
        rules: LoadRules,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._mapping = mapping
        self._name = name
        self._max_chars = settings.document_max_chars
        self._progress = progress
        self._rules = rules
        self._selection = rules.selection
        self._places = _Places()
        self._records = 0
        self._unselected = 0

    def run(self, mark: str) -> Corpus:
        selection = self._selection
        mapping = Jsonb(map_strings(self._mapping.as_json(), make_storable))
        base = queries.corpus_before(
            self._connection,
            name=self._name,
            field_mapping=mapping,
            narrowing=Jsonb(map_strings(selection.narrowing, make_storable)),
        )
        corpus_id = queries.insert_corpus(
            self._connection,
            name=self._name,
            uri=make_storable(self._reader.uri),
            fingerprint=mark,
            field_mapping=mapping,
            selection=Jsonb(map_strings(selection.as_json(), make_storable)),
            base_id=None if base is None else base["id"],
        )
        staged = selection.only_new or bool(selection.group_by)
        table = _STAGED if staged else _DOCUMENTS
        if staged:
            self._connection.execute(_CREATE_STAGED)
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, mode="w+", encoding="utf-8", newline="\n") as spool:
            rejects = _Rejects(spool, self._reader, self._rules)
            duplicates = Duplicates()
            documents = self._copy_documents(table, corpus_id, rejects, duplicates)
            documents -= self._remove_duplicates(duplicates, table, corpus_id, rejects)
            self._check_share(rejects)
            if documents == 0 and not self._unselected:
                raise rejects.refusal("no record can be a document")
            if documents == 0:
                raise UsageError(f"none of {counted(self._unselected, 'document')} of {self._reader.uri} is selected")
            difference = None
            if base is not None:
                difference = compare(self._connection, table, corpus_id, base, selection.only_new)
                if selection.only_new and not difference.added + difference.changed:
                    return self._nothing_new(corpus_id, base, difference, rejects.codes.total())
                if selection.only_new:
                    documents = difference.added + difference.changed
            if staged:
                self._keep(corpus_id)
            with self._connection.cursor().copy(_COPY_REJECTS) as copy:
                for row in rejects.rows():
                    copy.write_row([corpus_id, *row])
        queries.count_corpus(
            self._connection,
            document_count=documents,
            rejected_count=rejects.codes.total(),
            unselected_count=self._unselected,
            difference=None if difference is None else Jsonb(difference.as_json()),
            corpus_id=corpus_id,
        )
        return Corpus(corpus_id, self._name, documents, rejects.codes.total(), True, self._unselected, difference)

    def _copy_documents(self, table: sql.Identifier, corpus_id: int, rejects: _Rejects, duplicates: Duplicates) -> int:
        drawn = self._drawn()
        selection, mapping, max_chars = self._selection, self._mapping, self._max_chars
        every = drawn is None and not selection.where
        shift, here = None, ""
        documents = 0
        statement = _COPY_DOCUMENTS.format(table=table, columns=_COLUMNS)
        cursor = self._connection.cursor()
        # Sent by a thread of its own: records are read while Postgres is busy.
        with cursor.copy(statement, writer=QueuedLibpqWriter(cursor)) as copy:
            write = copy.write_row
            note = duplicates.note
            for position, line, content, source in self._read("loading"):
                self._records += 1
                if line - position != shift or source != here:
                    shift, here = line - position, source
                    self._places.note(position, line, source)
                made = content if isinstance(content, Reject) else read_record(content, mapping, max_chars)
                if isinstance(made, Reject):
                    rejects.add(position, line, source, made)
                elif not every and not self._selects(position, content, drawn):  # type: ignore[arg-type]
                    self._unselected += 1
                else:
                    external_id, text, meta, content_hash, flags, original = made
                    listed = "{" + ",".join(flags) + "}" if flags else "{}"
                    # As text: psycopg has libpq escape bytes, which takes almost half the time of a row.
                    digest = "\\x" + content_hash.hex()
                    write((corpus_id, position, external_id, text, meta, digest, listed, original))
                    note(external_id)
                    documents += 1
                    if documents == selection.limit:
                        break
        return documents

    def _selects(self, position: int, record: dict[str, Any], drawn: frozenset[int] | None) -> bool:
        return (drawn is None or position in drawn) and self._selection.matches(record)

    def _read(self, stage: str) -> Iterator[Record]:
        size = self._reader.size
        return self._reader.records(lambda done: self._progress(stage, done, size))

    def _drawn(self) -> frozenset[int] | None:
        """The positions of the documents of a sample."""
        if self._selection.sample is None:
            return None

        def eligible() -> Iterator[int]:
            for position, _, content, _ in self._read("sampling"):
                if not isinstance(content, Reject) and self._selection.matches(content):
                    made = read_record(content, self._mapping, self._max_chars)
                    if not isinstance(made, Reject):
                        yield position

        return draw(eligible(), self._selection.sample, self._selection.seed)

    def _remove_duplicates(
        self, duplicates: Duplicates, table: sql.Identifier, corpus_id: int, rejects: _Rejects
    ) -> int:
        first = self._rules.on_duplicate is OnDuplicate.FIRST

        def removed(ordinal: int, kept: int, external_id: str, excerpt: str) -> None:
            line, source = self._places.of(kept)
            place = f"{self._reader.unit} {line}" + (f" of {source}" if source else "")
            reason = f"the id {external_id!r} is that of {place} {'already' if first else 'too, which is kept'}"
            rejects.add(ordinal, *self._places.of(ordinal), Reject.of(RejectCode.DUPLICATE_ID, reason, excerpt))

        return duplicates.remove(self._connection, table, corpus_id, self._rules.on_duplicate, removed)

    def _check_share(self, rejects: _Rejects) -> None:
        count = rejects.codes.total()
        if too_many := self._rules.exceeded(count, self._records):
            raise rejects.refusal(f"{count:,} of {counted(self._records, 'record')} rejected, {too_many}")

    def _keep(self, corpus_id: int) -> None:
        """Move what stays to its place, in its order."""
        columns = [sql.Identifier(name) for name in _COLUMNS.as_string().split(", ")]
        if self._selection.group_by:
            order = [sql.SQL("meta -> {}").format(sql.Literal(name)) for name in self._selection.group_by]
            columns[1] = sql.SQL("row_number() OVER (ORDER BY {}, ordinal) - 1 AS ordinal").format(  # type: ignore[call-overload]
                sql.SQL(", ").join(order)
            )
        self._connection.execute(_KEEP.format(columns=_COLUMNS, chosen=sql.SQL(", ").join(columns), staged=_STAGED))

    def _nothing_new(self, corpus_id: int, base: dict[str, Any], difference: Difference, rejected: int) -> Corpus:
        """Take the corpus back: all that it would hold is known already."""
        queries.delete_corpus(self._connection, corpus_id=corpus_id)
        return Corpus(base["id"], base["name"], base["document_count"], rejected, False, 0, difference)
