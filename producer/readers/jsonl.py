"""JSON Lines: one object a line, UTF-8, lines ended by LF (or CR LF), blank lines skipped."""

import io
from collections.abc import Iterator

from producer.readers.base import Advance, Record
from producer.readers.encoding import MARK_BYTES, as_utf8, marked_encoding
from producer.readers.file import CorpusFile
from producer.readers.json_record import excerpt, parse_bytes, too_large

_WHITE_SPACE = b" \t\r\n"
#: Bytes read at a time from a line that is too long to keep.
_SKIP_BYTES = 64 * 1024


class JsonlReader:
    """Reads a JSONL file.

    :param max_bytes: bytes a line may have; a longer one is rejected and never held in memory.
    :param encoding: if it is neither UTF-8 nor UTF-16 with a byte order mark, as PowerShell writes it.
    """

    unit = "line"

    def __init__(self, file: CorpusFile, max_bytes: int, encoding: str | None = None) -> None:
        self._file = file
        self._max_bytes = max_bytes
        # JSON is UTF-8 unless somebody says otherwise: what a guess would make of broken lines is no text.
        self._encoding = encoding or marked_encoding(file.head(MARK_BYTES)) or "utf-8"
        self.uri = file.uri
        self.size = file.size
        #: Raise the number when the same bytes would become other records.
        self.format = "jsonl/1" + ("" if encoding is None else f" {encoding}")
        self.notes = ("format: JSON Lines" + ("" if self._encoding.startswith("utf-8") else f", {self._encoding}"),)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        position, line_no, most = 0, 0, self._max_bytes
        with self._file.open(advance) as stored:
            stream = as_utf8(stored, self._encoding)
            while line := stream.readline(most + 1):
                line_no += 1
                if len(line) > most and not line.endswith(b"\n"):
                    yield Record(position, line_no, too_large(excerpt(line), "line", most))
                    _skip_line(stream)
                elif line.isspace() and not line.strip(_WHITE_SPACE):
                    continue
                else:
                    yield Record(position, line_no, parse_bytes(line.removesuffix(b"\n"), "line"))
                position += 1


def _skip_line(stream: io.BufferedReader) -> None:
    """Go over the rest of a line, holding none of it."""
    while (skipped := stream.readline(_SKIP_BYTES)) and not skipped.endswith(b"\n"):
        pass
