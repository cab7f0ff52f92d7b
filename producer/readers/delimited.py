"""CSV and TSV: one record a row, cells kept as the text they are."""

import csv
import io
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TextIO

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
#: How often a file is read again from its start, as a row that is too long has no end, and how many lines that were
#: kept are read again, as a quote is not closed: seconds. Beyond either no cell may have several lines.
_REREADS, _LINES_AGAIN = 10, 10_000_000
#: What Python says of lines that end inside a cell.
_NO_END = "end of data"
_NOT_CLOSED = "a quote opens a cell and is not closed: the lines below are read as rows of their own"
_BOM = "\ufeff"


class _TooLong(Exception):
    """A record is longer than it may be."""


class _Lines:
    """Lines with their ends. Those of an open record are kept, as it may turn out to be none; never more than a record
    may have.

    :param open_text: opens the file anew, to read again what was too much to keep.
    """

    def __init__(self, open_text: Callable[[], TextIO], dialect: Dialect, max_chars: int) -> None:
        self._open_text = open_text
        self._stream = open_text()
        self._dialect = dialect
        self._max_chars = max_chars
        self._read_lines = 0  # from the stream
        self._before = 0  # lines above the open record
        self._rereads = 0
        self._lines_again = 0
        self._again: deque[str] = deque()  # lines that were kept and are read again
        self._last = ""
        self._quotes = 0  # in the last line from the stream
        self.record: list[str] = []
        self._chars = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        searched = self._rereads >= _REREADS or self._lines_again >= _LINES_AGAIN
        line = "" if self.record and searched else self._next_line()
        if not line:
            raise StopIteration
        if not self.record:
            line = line.removeprefix(_BOM)  # of one more file: several were put together
        self._last = line
        self._chars += len(line)
        if self._chars > self._max_chars:
            raise _TooLong
        self.record.append(line)
        return line

    @property
    def beginning(self) -> str:
        """The first line of the open record."""
        return self.record[0] if self.record else self._last

    def begin(self) -> None:
        """A new record begins with the next line."""
        self.record = []
        self._chars = 0
        self._before = self._read_lines - len(self._again)

    def end_record(self) -> bool:
        """Go to the end of a record that is too long, or, where it has none, back to its second line.

        :returns: whether it has an end.
        """
        if self._rereads >= _REREADS:
            return True
        line, inside = self._last, bool(self.record)
        while line and (error := self._error(line, inside)):
            if _NO_END not in error:
                break
            line, inside = self._next_line(), True
        else:
            if line:
                return True
        self._rereads += 1
        self._again.clear()
        self._stream = self._open_text()
        self._read_lines = 0
        for _ in range(self._before + 1):
            self._read()
        return False

    def go_back(self) -> None:
        """Go back to the second line of the open record."""
        below = self.record[1:]
        self._again.extendleft(reversed(below))
        self._lines_again += len(below)

    def _next_line(self) -> str:
        return self._again.popleft() if self._again else self._read()

    def _read(self) -> str:
        """The next line; of one that is too long, its beginning."""
        line = rest = self._stream.readline(self._max_chars + 1)
        self._read_lines += bool(line)
        self._quotes = line.count('"')
        while len(line) > self._max_chars and rest and not rest.endswith(("\n", "\r")):
            rest = self._stream.readline(self._max_chars)
            self._quotes += rest.count('"')
        return line

    def _error(self, line: str, inside: bool) -> str:
        """Why a record does not end with a line; empty if it does. :param inside: whether a quote before it is open."""
        inside = inside and self._dialect.quoted
        if len(line) > self._max_chars:  # not all of it is here
            return _NO_END if self._dialect.quoted and (self._quotes + inside) % 2 else ""
        try:
            next(csv.reader(['"' + line if inside else line], **self._dialect.arguments))
        except csv.Error as error:
            return str(error)
        return ""


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
        self.format = f"csv/2 {self._encoding.name} {self.dialect!r}"
        self.notes = (f"format: CSV, {self.dialect.words}, {self._encoding.words}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`. Blank rows and rows of empty cells are skipped."""
        with ExitStack() as stack:
            # Whole chapters stand in cells; a record's own limit is ours.
            csv.field_size_limit(self._max_chars)
            lines = _Lines(partial(self._open_text, stack, advance), self.dialect, self._max_chars)
            rows = _Rows(lines, self.dialect, self._max_chars)
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

    def _open_text(self, stack: ExitStack, advance: Advance) -> TextIO:
        stream = stack.enter_context(self._file.open(advance))
        text = io.TextIOWrapper(stream, encoding=self._encoding.name, errors=MARK, newline="")
        stack.callback(text.detach)
        return text

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
    """Each row, or why it could not be read. A row that has no end is its first line: those below may be good."""

    def __init__(self, lines: _Lines, dialect: Dialect, max_chars: int) -> None:
        self._lines = lines
        self._dialect = dialect
        self._max_chars = max_chars

    def __iter__(self) -> Iterator[list[str] | Reject]:
        while True:
            reader = csv.reader(self._lines, **self._dialect.arguments)
            try:
                while True:
                    self._lines.begin()
                    yield next(reader)
            except StopIteration:
                return
            except _TooLong:
                yield self._too_long()
            except csv.Error as error:
                self._lines.go_back()
                yield self._unread(str(error), len(self._lines.record) - 1)

    def _too_long(self) -> Reject:
        beginning = self._lines.beginning
        if self._lines.end_record() or len(beginning) > self._max_chars:
            return too_large(beginning, "row", self._max_chars)
        return Reject.of(RejectCode.INVALID_CSV, _NOT_CLOSED, beginning)

    def _unread(self, error: str, below: int) -> Reject:
        if _NO_END in error:
            reason = _NOT_CLOSED
        elif below:
            reason = f"no CSV: {error}, {counted(below, 'line')} below: is a quote in this one not closed?"
        else:
            reason = f"no CSV: {error}"
        return Reject.of(RejectCode.INVALID_CSV, reason, self._lines.beginning)
