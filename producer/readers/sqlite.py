"""A table or a query of an SQLite file, row by row."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from producer.readers.base import Advance, ReadOptions, Record
from producer.readers.encoding import MARK, UNDECODED
from producer.readers.file import CorpusFile
from producer.readers.plain import plain
from producer.records import Reject
from schemas.errors import UsageError
from schemas.outcomes import RejectCode
from schemas.printable import counted

#: Tables that are SQLite's own, or the shadows of its text index.
_TABLES = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite^_%' ESCAPE '^'"
#: Rows between two reports of progress.
_REPORT_ROWS = 1000


class SqliteReader:
    """Reads an SQLite file: the only table, ``--table``, or the answer to ``--query``."""

    unit = "row"

    def __init__(self, file: CorpusFile, max_bytes: int, options: ReadOptions) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._query = options.query
        self.uri = file.uri
        self.size = file.size
        with self._opened() as database:
            what = "a query"
            if self._query is None:
                table = self._table(database, options.table)
                what = f"table {table}"
                self._query = f'SELECT * FROM "{table.replace(chr(34), chr(34) * 2)}"'  # noqa: S608
        self.format = f"sqlite/1 {self._query}"
        self.notes = (f"format: SQLite, {what}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`, the write-ahead log included."""
        digest = self._file.digest(advance)
        log = Path(f"{self._file.path}-wal")
        return sha256(digest.encode() + log.read_bytes()).hexdigest() if log.is_file() else digest

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`. Of columns with one name the last counts, as in SQLite's own tools."""
        with self._opened() as database:
            cursor = database.execute(self._query or "")
            names = [column[0] for column in cursor.description or ()]
            if not names:
                raise UsageError(f"{self._file.name}: the query answers no rows: it must be a SELECT")
            for position, row in enumerate(cursor):
                yield Record(position, position + 1, self._content(dict(zip(names, row, strict=True))))
                if position % _REPORT_ROWS == 0:
                    advance(min(self.size, position))
            advance(self.size)

    def _content(self, row: dict[str, Any]) -> dict[str, Any] | Reject:
        texts = [value for value in row.values() if isinstance(value, str)]
        if sum(map(len, texts)) > self._max_bytes:
            reason = f"the row has over {self._max_bytes:,} characters (GLEANER_RECORD_MAX_BYTES)"
            return Reject.of(RejectCode.TOO_LARGE, reason, texts[0])
        if any(UNDECODED in text for text in texts):
            return Reject.of(RejectCode.BAD_ENCODING, "a text of the row is not UTF-8", " ".join(texts))
        return {name: plain(value) for name, value in row.items()}

    def _table(self, database: sqlite3.Connection, table: str | None) -> str:
        tables = [row[0] for row in database.execute(_TABLES)]
        if table is None and len(tables) == 1:
            return str(tables[0])
        if table is None or table not in tables:
            what = f"has no table {table!r}" if table else f"has {counted(len(tables), 'table')}"
            raise UsageError(
                f"{self._file.name} {what}: name one with --table, or select with --query "
                f"({', '.join(map(str, tables[:20])) or 'it is empty'})"
            )
        return table

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._file.on_disk() as path, closing(_connect(path)) as database:
                yield database
        except sqlite3.Error as error:
            raise UsageError(f"{self._file.name}: SQLite says: {error}") from None


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    database.text_factory = lambda value: value.decode("utf-8", MARK)
    database.execute("PRAGMA query_only = on")
    return database
