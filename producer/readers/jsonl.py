"""JSON Lines: one object a line, UTF-8, lines ended by LF (or CR LF), blank lines skipped."""

import io
import json
from collections.abc import Iterator
from typing import Any

from producer.readers.base import Advance, Record
from producer.readers.file import CorpusFile
from producer.records import EXCERPT_CHARS, Reject, kind
from schemas.jsontext import parse_json
from schemas.outcomes import RejectCode

_BOM = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"
#: Bytes read at a time from a line that is too long to keep.
_SKIP_BYTES = 64 * 1024
#: UTF-8 bytes of a character at most: so much of a line suffices for an excerpt.
_CHAR_BYTES = 4


class JsonlReader:
    """Reads a JSONL file, plain or gzip (told by its first bytes, whatever its name).

    :param max_bytes: bytes a line may have; a longer one is rejected and never held in memory.
    """

    #: Raise the number when the same bytes would become other records.
    format = "jsonl/1"

    def __init__(self, uri: str, max_bytes: int) -> None:
        self._file = CorpusFile(uri)
        self._max_bytes = max_bytes
        self.uri = str(self._file.path.absolute())
        self.size = self._file.size

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        position = 0
        with self._file.open(advance) as stream:
            for line_no, (line, cut) in enumerate(self._lines(stream), start=1):
                if cut:
                    content: dict[str, Any] | Reject = _too_large(line, self._max_bytes)
                elif not line.strip(_WHITE_SPACE):
                    continue
                else:
                    content = _parse(line)
                yield Record(position, line_no, content)
                position += 1

    def _lines(self, stream: io.BufferedReader) -> Iterator[tuple[bytes, bool]]:
        """Each line without its LF, and whether it is only the beginning of one that is too long."""
        if stream.peek(len(_BOM)).startswith(_BOM):
            stream.read(len(_BOM))
        while line := stream.readline(self._max_bytes + 1):
            cut = len(line) > self._max_bytes and not line.endswith(b"\n")
            yield line.removesuffix(b"\n"), cut
            while cut:
                skipped = stream.readline(_SKIP_BYTES)
                cut = bool(skipped) and not skipped.endswith(b"\n")


def _excerpt(line: bytes) -> str:
    return line[: EXCERPT_CHARS * _CHAR_BYTES].decode("utf-8", "replace")


def _too_large(line: bytes, max_bytes: int) -> Reject:
    reason = f"the line has over {max_bytes} bytes (GLEANER_RECORD_MAX_BYTES)"
    return Reject.of(RejectCode.TOO_LARGE, reason, _excerpt(line))


def _parse(line: bytes) -> dict[str, Any] | Reject:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
        return Reject.of(RejectCode.BAD_ENCODING, reason, _excerpt(line))
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at character {error.pos + 1} of the line"
        return Reject.of(RejectCode.INVALID_JSON, reason, text)
    except ValueError as error:
        return Reject.of(RejectCode.INVALID_JSON, str(error), text)
    if not isinstance(value, dict):
        return Reject.of(RejectCode.NOT_AN_OBJECT, f"the line is {kind(value)}, not an object", text)
    return value
