"""The answer to a query of any Postgres database, as a stream."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from producer.readers.base import Advance, ReadOptions, Record
from producer.readers.plain import plain
from schemas.errors import GleanerError, UsageError
from schemas.jsontext import dump_json

#: Rows fetched at a time: beyond this the round trip no longer counts.
_FETCH_ROWS = 1000


class PostgresReader:
    """Reads ``--query`` or ``--table`` of another database: twice in one snapshot, once for the digest.

    :raises UsageError: for a URL or a query that is wrong. :raises GleanerError: when the database can't be reached.
    """

    unit = "row"
    #: Bytes are not known before they are read.
    size = 0

    def __init__(self, url: str, options: ReadOptions) -> None:
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error:
            raise UsageError("the corpus is no URL of the form postgresql://user@host:port/name") from None
        if options.query is not None:
            self._query: sql.SQL | sql.Composed = sql.SQL(options.query)
        elif options.table is not None:
            self._query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(*options.table.split(".")))
        else:
            raise UsageError("a database is no corpus by itself: say which rows with --query or --table")
        what = options.query or f"table {options.table}"
        self.uri = f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}: {what}"
        self.format = f"postgres/1 {what}"
        self.notes = (f"format: Postgres, {'a query' if options.query else what}",)
        with self._failing():
            self._connection = psycopg.connect(url, application_name="gleaner producer read")
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        weakref.finalize(self, self._connection.close)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`, of the rows."""
        parts = sha256()
        for row in self._rows():
            parts.update(dump_json(row).encode("utf-8", "surrogatepass") + b"\n")
        return parts.hexdigest()

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        for position, row in enumerate(self._rows()):
            yield Record(position, position + 1, row)

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._failing(), self._connection.cursor("gleaner_corpus") as cursor:
            cursor.itersize = _FETCH_ROWS
            cursor.execute(self._query)
            names = [column.name for column in cursor.description or ()]
            for row in cursor:
                yield {name: plain(value) for name, value in zip(names, row, strict=True)}

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except psycopg.OperationalError as error:
            raise GleanerError(f"{self.uri}: no connection to it: {_line(error)}") from None
        except psycopg.Error as error:
            raise UsageError(f"{self.uri}: Postgres says: {_line(error)}") from None


def _line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
