"""A file without a byte among others: one reject, so that it is counted."""

from collections.abc import Iterator

from producer.readers.base import Advance, Reader, Record
from producer.readers.file import CorpusFile
from producer.records import Reject
from schemas.outcomes import RejectCode


class EmptyFileReader:
    """Reads nothing. :param like: the reader of another file of the corpus, whose words it uses."""

    format = "empty/1"

    def __init__(self, file: CorpusFile, like: Reader) -> None:
        self._file = file
        self.uri = file.uri
        self.size = file.size
        self.unit = like.unit
        self.notes = like.notes

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """One reject."""
        with self._file.open(advance):
            yield Record(0, 1, Reject.of(RejectCode.EMPTY, "the file is empty", ""))
