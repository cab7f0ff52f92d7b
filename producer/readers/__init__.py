"""Readers of corpora: one module a format, behind :class:`Reader`."""

from producer.readers.base import Advance, Reader, Record
from producer.readers.jsonl import JsonlReader
from schemas.settings import Settings

__all__ = ["Advance", "Reader", "Record", "open_reader"]


def open_reader(uri: str, settings: Settings) -> Reader:
    """The reader of a corpus.

    :param uri: the path of a JSONL file, plain or gzip.
    :raises UsageError: for a file that is missing, empty, unreadable or not a file.
    """
    return JsonlReader(uri, max_bytes=settings.record_max_bytes)
