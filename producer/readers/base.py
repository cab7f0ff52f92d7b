"""What every reader offers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from producer.records import Reject

#: Called with the bytes read so far.
Advance = Callable[[int], None]


class Record(NamedTuple):
    """One record of a corpus. ``position`` counts records from 0, ``line`` lines of the file from 1."""

    position: int
    line: int
    content: dict[str, Any] | Reject


class Reader(Protocol):
    """Reads a corpus as a stream, in constant memory. A bad record is yielded as a reject, never raised."""

    @property
    def uri(self) -> str:
        """Where the corpus is, for people and for the table of corpora."""

    @property
    def size(self) -> int:
        """Bytes as stored, for progress."""

    @property
    def format(self) -> str:
        """Name and version of the way in which bytes become records: part of the corpus's fingerprint."""

    def digest(self, advance: Advance) -> str:
        """SHA-256 of the bytes as stored, as hex, in one pass.

        :raises GleanerError: when they can't be read.
        """

    def records(self, advance: Advance) -> Iterator[Record]:
        """Every record in order.

        :raises UsageError: for a damaged file.
        :raises GleanerError: at the end, when the bytes are not those of :meth:`digest`; or when they can't be read.
        """
