"""CSV and TSV: one record a row, cells kept as the text they are."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from producer.readers.base import Advance, ReadOptions, Record
from producer.readers.dialect import Dialect, check_delimiter, column_names, detect_dialect, names_delimiter
from producer.readers.encoding import MARK, UNDECODED, Encoding, detect_encoding
from producer.readers.file import CorpusFile
from producer.readers.json_record import too_large
from producer.records import Reject
from schemas.outcomes import RejectCode
from schemas.printable import counted

#: Bytes that encoding and dialect are told by: some rows even where cells hold whole articles.
SAMPLE_BYTES = 512 * 1024


class _TooLong(Exception):
    """A line is longer than a record may be."""


class _Lines:
    """Lines with their ends, none of them held if it is too long. Counts the quotes since a record began."""

    def __init__(self, stream: io.TextIOWrapper, max_chars: int) -> None:
        self._stream = stream
        self._max_chars = max_chars
        self.quotes = 0
        self.beginning = ""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._read()
        if not line:
            raise StopIteration
        return line

    def _read(self) -> str:
        line = self._stream.readline(self._max_chars + 1)
        self.quotes += line.count('"')
        self.beginning = self.beginning or line[:1000]
        if len(line) > self._max_chars:
            while line and not line.endswith(("\n", "\r")):
                line = self._stream.readline(self._max_chars)
                self.quotes += line.count('"')
            raise _TooLong
        return line

    def begin(self) -> None:
        """A new record begins with the next line."""
        self.quotes = 0
        self.beginning = ""

    def leave_record(self, quoted: bool) -> None:
        """Go to the end of a record that is too long: where its quotes are even."""
        while quoted and self.quotes % 2:
            try:
                if not self._read():
                    return
            except _TooLong:
                continue


class DelimitedReader:
    """Reads a CSV or TSV file.

    :param max_bytes: characters a row may have; a longer one is rejected and never held in memory.
    """

    unit = "row"

    def __init__(self, file: CorpusFile, max_bytes: int, options: ReadOptions) -> None:
        self._file = file
        self._max_chars = max_bytes
        head = file.head(SAMPLE_BYTES)
        self._encoding = Encoding(options.encoding, given=True) if options.encoding else detect_encoding(head)
        delimiter = check_delimiter(options.delimiter)
        sample = head.decode(self._encoding.name, MARK)
        self.dialect, _ = detect_dialect(sample, len(head) < SAMPLE_BYTES, delimiter, options.header)
        self.uri = file.uri
        self.size = file.size
        self.format = f"csv/1 {self._encoding.name} {self.dialect!r}"
        self.notes = (f"format: CSV, {self.dialect.words}, {self._encoding.words}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`. Blank rows and rows of empty cells are skipped."""
        with self._file.open(advance) as stream:
            text = io.TextIOWrapper(stream, encoding=self._encoding.name, errors=MARK, newline="")
            # Whole chapters stand in cells; a record's own limit is ours.
            csv.field_size_limit(self._max_chars)
            rows = _Rows(text, self.dialect, self._max_chars)
            names: list[str] = []
            above = self.dialect.header
            position = 0
            for row_no, row in enumerate(rows, start=1):
                if isinstance(row, list):
                    if not row:
                        continue
                    if above > 0:
                        above -= 1
                        names = column_names(row)
                        continue
                    if not any(row) or (row_no == 1 and names_delimiter(self.dialect.delimiter.join(row))):
                        continue
                    names = names or [f"column_{number}" for number in range(1, len(row) + 1)]
                    content: dict[str, Any] | Reject = self._record(names, row)
                else:
                    content = row
                yield Record(position, row_no, content)
                position += 1
            text.detach()

    def _record(self, names: list[str], row: list[str]) -> dict[str, Any] | Reject:
        if len(row) != len(names):
            has = f"the row has {counted(len(row), 'cell')}, the table {counted(len(names), 'column')}"
            reason = f"{has}: is a delimiter or a quote missing?"
            return Reject.of(RejectCode.WRONG_COLUMNS, reason, self.dialect.delimiter.join(row))
        if UNDECODED in "".join(row):
            reason = self._encoding.undecoded("row")
            return Reject.of(RejectCode.BAD_ENCODING, reason, self.dialect.delimiter.join(row))
        return dict(zip(names, row, strict=True))


class _Rows:
    """Each row, or why it could not be read."""

    def __init__(self, text: io.TextIOWrapper, dialect: Dialect, max_chars: int) -> None:
        self._lines = _Lines(text, max_chars)
        self._dialect = dialect
        self._max_chars = max_chars

    def __iter__(self) -> Iterator[list[str] | Reject]:
        reader = csv.reader(self._lines, **self._dialect.arguments)
        while True:
            self._lines.begin()
            try:
                row = next(reader)
            except StopIteration:
                return
            except _TooLong:
                self._lines.leave_record(self._dialect.quoted)
                yield too_large(self._lines.beginning, "row", self._max_chars)
                reader = csv.reader(self._lines, **self._dialect.arguments)
            except csv.Error as error:
                yield self._unread(error)
            else:
                yield row

    def _unread(self, error: csv.Error) -> Reject:
        beginning = self._lines.beginning
        if "field limit" in str(error):
            self._lines.leave_record(self._dialect.quoted)
            return too_large(beginning, "row", self._max_chars)
        if "end of data" in str(error):
            reason = "the file ends inside a cell: its opening quote is never closed"
        else:
            reason = f"no CSV: {error}"
        return Reject.of(RejectCode.INVALID_CSV, reason, beginning)
