"""Several files as one corpus, one after another."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from producer.readers.base import Advance, Reader, Record
from schemas.printable import counted


class ManyReader:
    """Reads files of one format in their order. Positions go on from file to file, lines begin anew.

    :param names: what each file is called in rejects.
    """

    def __init__(self, readers: Sequence[Reader], names: Sequence[str], uri: str) -> None:
        self._readers = list(zip(readers, names, strict=True))
        self.uri = uri
        self.size = sum(reader.size for reader in readers)
        self.unit = readers[0].unit
        self.format = f"many/1 {readers[0].format}"
        distinct = list(dict.fromkeys(note for reader in readers for note in reader.notes))
        more = ["and " + counted(len(distinct) - 1, "other way") + " to write it"] if len(distinct) > 1 else []
        self.notes = (counted(len(readers), "file"), distinct[0], *more)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`, of the files in order, whatever they are called."""
        parts = sha256()
        before = 0
        for reader, _ in self._readers:
            parts.update(f"{reader.format} {reader.digest(_after(advance, before))}\n".encode())
            before += reader.size
        return parts.hexdigest()

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`."""
        before, first = 0, 0
        for reader, name in self._readers:
            count = 0
            for position, line, content, _ in reader.records(_after(advance, before)):
                yield Record(first + position, line, content, name)
                count += 1
            first += count
            before += reader.size


def _after(advance: Advance, before: int) -> Advance:
    return lambda done: advance(before + done)
