"""Plain-text and Markdown files: one document a file, its path as its id."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any

from producer.readers.base import Advance, Record
from producer.readers.encoding import MARK, UNDECODED, Encoding, detect_encoding
from producer.readers.file import CorpusFile
from producer.readers.json_record import too_large
from producer.records import Reject
from schemas.outcomes import RejectCode

#: Fields of a file's record.
PATH_FIELD, TEXT_FIELD = "path", "text"


class TextFilesReader:
    """Reads text files.

    :param names: what each is called, in the same order: its path below the folder that was given.
    :param max_bytes: bytes a file may have; a longer one is rejected and never held in memory.
    """

    unit = "file"

    def __init__(
        self, files: Sequence[CorpusFile], names: Sequence[str], uri: str, max_bytes: int, encoding: str | None
    ) -> None:
        self._files = list(zip(files, names, strict=True))
        self._max_bytes = max_bytes
        self._encoding = None if encoding is None else Encoding(encoding, given=True)
        self.uri = uri
        self.size = sum(file.size for file in files)
        self.format = "text/2" + ("" if encoding is None else f" {encoding}")
        told = "encoding told file by file (--encoding for another)" if encoding is None else encoding
        self.notes = (f"format: text, one document a file, {told}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`, of names and bytes."""
        parts = sha256()
        before = 0
        for file, name in self._files:
            digest = file.digest(lambda done, before=before: advance(before + done))  # type: ignore[misc]
            parts.update(f"{digest} {name}\n".encode("utf-8", "surrogatepass"))
            before += file.size
        return parts.hexdigest()

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        before = 0
        for position, (file, name) in enumerate(self._files):
            with file.open(lambda done, before=before: advance(before + done)) as stream:  # type: ignore[misc]
                content = stream.read(self._max_bytes + 1)
            yield Record(position, position + 1, self._record(content, name), name)
            before += file.size

    def _record(self, content: bytes, name: str) -> dict[str, Any] | Reject:
        if len(content) > self._max_bytes:
            return too_large(content[:1000].decode("utf-8", "replace"), "file", self._max_bytes)
        encoding = self._encoding or detect_encoding(content)
        text = content.decode(encoding.name, MARK)
        if UNDECODED in text:
            return Reject.of(RejectCode.BAD_ENCODING, encoding.undecoded("file"), text)
        return {PATH_FIELD: PurePath(name).as_posix(), TEXT_FIELD: text}
