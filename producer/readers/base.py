"""What every reader offers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from producer.records import Reject
from schemas.errors import UsageError
from schemas.extras import install

#: Called with the bytes read so far.
Advance = Callable[[int], None]


class Record(NamedTuple):
    """One record of a corpus.

    ``position`` counts records from 0. ``line`` is where it stands in its file, from 1: its line, or its row as a
    spreadsheet counts. ``source`` names the file where the corpus has several.
    """

    position: int
    line: int
    content: dict[str, Any] | Reject
    source: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user says of a corpus, where its content alone does not say it or says it wrongly."""

    format: str | None = None  #: one of :data:`producer.readers.detect.FORMATS`
    encoding: str | None = None  #: of text, CSV and JSON, as Python names it
    delimiter: str | None = None  #: between the cells of a CSV file
    header: bool | None = None  #: whether the first row of a CSV file or sheet names its columns
    table: str | None = None  #: of a database
    query: str | None = None  #: of a database
    sheet: str | None = None  #: of a workbook


class Reader(Protocol):
    """Reads a corpus as a stream, in constant memory. A bad record is yielded as a reject, never raised."""

    @property
    def uri(self) -> str:
        """Where the corpus is, for people and for the table of corpora. Without passwords."""

    @property
    def size(self) -> int:
        """Bytes as stored, for progress."""

    @property
    def format(self) -> str:
        """Name and version of the way in which bytes become records, with every option that changes them: part of the
        corpus's fingerprint."""

    @property
    def unit(self) -> str:
        """What ``Record.line`` counts, in a word: line, row, item or file."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was guessed about the corpus, to be shown: its format, dialect and encoding."""

    def digest(self, advance: Advance) -> str:
        """SHA-256 of the bytes as stored, as hex, in one pass.

        :raises GleanerError: when they can't be read.
        """

    def records(self, advance: Advance) -> Iterator[Record]:
        """Every record in order.

        :raises UsageError: for a damaged file.
        :raises GleanerError: at the end, when the bytes are not those of :meth:`digest`; or when they can't be read.
        """


def library(module: str, package: str, what: str) -> Any:
    """A module that only some formats need.

    :param package: what installs it. :param what: what needs it, in words.
    :raises UsageError: when it is not installed; names the remedy.
    """
    try:
        return import_module(module)
    except ImportError:
        raise UsageError(f"{what} needs the package {package}: {install(package)}") from None
