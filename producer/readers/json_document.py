"""One JSON document: an array of objects, an object that holds such an array, or one object that is the only record."""

import io
import re
from collections.abc import Iterator
from typing import Any

from producer.readers.base import Advance, Record
from producer.readers.encoding import MARK, UNDECODED, Encoding, as_utf8, detect_encoding
from producer.readers.file import CorpusFile
from producer.readers.json_record import parse_text, too_large
from producer.records import EXCERPT_CHARS, Reject
from schemas.errors import UsageError
from schemas.jsontext import parse_json
from schemas.outcomes import RejectCode

#: Bytes that the encoding is told by.
_HEAD_BYTES = 64 * 1024
#: Characters read at a time.
_READ_CHARS = 256 * 1024
_SPACE = re.compile(r"[ \t\n\r]*")
_LIST = re.compile(r"\[\s*(\S)")
#: What decides where a string, an object or a list ends.
_MARKS = re.compile(r'["\\\[\]{}]')
#: A number or a word.
_SCALAR = re.compile(r"[^\s,:\[\]{}\"]*")


class _Ended(Exception):
    """The document ends in the middle of a value."""


class _Text:
    """The document's text from a moving place on: no more of it is in memory than one block and one value."""

    def __init__(self, stream: io.BufferedReader, max_chars: int) -> None:
        self._stream = io.TextIOWrapper(stream, encoding="utf-8", errors=MARK, newline="")
        self._max_chars = max_chars
        self._before = 0
        self._block = ""
        self._at = 0

    @property
    def place(self) -> int:
        """The character that is next, from 1."""
        return self._before + self._at + 1

    def _more(self) -> bool:
        self._before += len(self._block)
        self._block, self._at = self._stream.read(_READ_CHARS), 0
        return bool(self._block)

    def peek(self) -> str:
        """The next character that is not white space; nothing at the end."""
        while True:
            self._at = _SPACE.match(self._block, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._block):
                return self._block[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> bool:
        """Go over the next character if it is this one."""
        if self.peek() != expected:
            return False
        self._at += 1
        return True

    def opens_objects(self) -> bool:
        """Whether a list of objects begins here. Nothing is gone over."""
        while (found := _LIST.match(self._block, self._at)) is None:
            block = self._stream.read(_READ_CHARS)
            if not block or len(self._block) > self._max_chars:
                return False
            self._before += self._at
            self._block, self._at = self._block[self._at :] + block, 0
        return found.group(1) == "{"

    def value(self) -> tuple[str, bool]:
        """The text of the value that begins here, and whether it is only the beginning of one that is too long.

        :raises _Ended: when the document ends first.
        """
        parts: list[str] = []
        size = 0
        for part in self._parts():
            size += len(part)
            if size <= self._max_chars or not parts:
                parts.append(part)
        text = "".join(parts)
        return (text[:EXCERPT_CHARS], True) if size > self._max_chars else (text, False)

    def _parts(self) -> Iterator[str]:
        return self._bracketed() if self.peek() in ("{", "[", '"') else self._scalar()

    def _scalar(self) -> Iterator[str]:
        while True:
            start = self._at
            self._at = _SCALAR.match(self._block, start).end()  # type: ignore[union-attr]
            yield self._block[start : self._at]
            if self._at < len(self._block) or not self._more():
                return

    def _bracketed(self) -> Iterator[str]:
        depth, quoted, escaped = 0, False, -1
        while True:
            start = self._at
            for found in _MARKS.finditer(self._block, start):
                mark = found.group()
                if quoted:
                    if found.start() == escaped:
                        continue
                    if mark == "\\":
                        escaped = found.end()
                        continue
                    if mark != '"':
                        continue
                    quoted = False
                elif mark == '"':
                    quoted = True
                    continue
                elif mark in "{[":
                    depth += 1
                    continue
                else:
                    depth -= 1
                if depth <= 0:
                    self._at = found.end()
                    yield self._block[start : self._at]
                    return
            yield self._block[start:]
            escaped -= len(self._block)
            if not self._more():
                raise _Ended


class JsonDocumentReader:
    """Reads a file that is one JSON document, an item at a time.

    :param max_bytes: characters an item may have; a longer one is rejected and never held in memory.
    """

    unit = "item"

    def __init__(self, file: CorpusFile, max_bytes: int, encoding: str | None = None) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._encoding = Encoding(encoding, given=True) if encoding else detect_encoding(file.head(_HEAD_BYTES))
        self.uri = file.uri
        self.size = file.size
        self.format = f"json/2 {self._encoding.name}"
        guessed = f", {self._encoding.words}" if self._encoding.guessed else ""
        self.notes = (f"format: one JSON document{self._where_from()}{guessed}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        with self._file.open(advance) as stored:
            text = _Text(as_utf8(stored, self._encoding.name), self._max_bytes)
            count = 0
            try:
                for item, cut in self._items(text):
                    yield Record(count, count + 1, self._content(item, cut))
                    count += 1
            except _Ended:
                raise self._broken(f"it ends in the middle of item {count + 1}") from None

    def _content(self, item: str, cut: bool) -> dict[str, Any] | Reject:
        if cut:
            return too_large(item, "item", self._max_bytes)
        if UNDECODED in item:
            return Reject.of(RejectCode.BAD_ENCODING, self._encoding.undecoded("item"), item)
        return parse_text(item, "item")

    def _where_from(self) -> str:
        with self._file.open(lambda _: None) as stored:
            text = _Text(as_utf8(stored, self._encoding.name), self._max_bytes)
            if text.peek() != "{":
                return ", an array"
            try:
                name, _ = self._list_of_objects(text)
            except _Ended:
                return ""
            return ", one object" if name is None else f": the items of {name!r}, its other fields left out"

    def _items(self, text: _Text) -> Iterator[tuple[str, bool]]:
        """Each item's text, and whether it is only the beginning of one that is too long."""
        if text.peek() == "[":
            yield from self._array(text)
        elif text.peek() != "{":
            raise self._broken("it begins with neither a bracket nor a brace")
        else:
            name, members = self._list_of_objects(text)
            if name is None:
                yield members, False
            else:
                yield from self._array(text)
                self._leave_object(text)
        if text.peek():
            raise self._broken(f"something follows it at character {text.place}")

    def _leave_object(self, text: _Text) -> None:
        while text.take(","):
            text.value()
            if text.take(":"):
                text.value()
        if not text.take("}"):
            raise self._broken(f"no comma or brace at character {text.place}") if text.peek() else _Ended

    def _array(self, text: _Text) -> Iterator[tuple[str, bool]]:
        text.take("[")
        if text.take("]"):
            return
        while True:
            if text.peek() in ("", ",", "]", "}", ":"):
                raise self._broken(f"no value at character {text.place}") if text.peek() else _Ended
            yield text.value()
            if text.take(","):
                continue
            if text.take("]"):
                return
            raise self._broken(f"no comma or bracket at character {text.place}") if text.peek() else _Ended

    def _list_of_objects(self, text: _Text) -> tuple[str | None, str]:
        """Go to the first member of an object that is a list of objects: its name. None when there is none: then the
        object's whole text."""
        text.take("{")
        members: list[str] = []
        size = 0
        while not text.take("}"):
            key, _ = text.value()
            if not text.take(":"):
                raise self._broken(f"no colon at character {text.place}") if text.peek() else _Ended
            if text.peek() == "[" and text.opens_objects():
                return str(parse_json(key)), ""
            value, cut = text.value()
            members.append(f"{key}:{value}")
            size += len(members[-1])
            if cut or size > self._max_bytes:
                raise UsageError(
                    f"{self._file.name} is one object of over {self._max_bytes:,} bytes (GLEANER_RECORD_MAX_BYTES) "
                    "without a list of objects: make it JSON Lines, one object a line."
                )
            text.take(",")
        return None, "{" + ",".join(members) + "}"

    def _broken(self, why: str) -> UsageError:
        return UsageError(f"{self._file.name} is no whole JSON document: {why}. Nothing was kept.")
