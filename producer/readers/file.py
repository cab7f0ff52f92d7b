"""A local file as a stream of bytes, gzip undone, with the bytes as stored counted and hashed on the way."""

import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from producer.readers.base import Advance
from schemas.errors import GleanerError, UsageError

_GZIP_MAGIC = b"\x1f\x8b"
#: Bytes a read: beyond about 1 MiB the system call no longer counts.
_BUFFER_BYTES = 1024 * 1024


class _Tap(io.RawIOBase):
    """Passes bytes on, counts and hashes them."""

    def __init__(self, raw: io.FileIO, advance: Advance) -> None:
        self._raw = raw
        self._advance = advance
        self._hash = sha256()
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._raw.readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:count])
        self._count += count
        self._advance(self._count)
        return count

    def drain(self) -> str:
        """Read what is left; the digest of all bytes as hex."""
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while self.readinto(buffer):
            pass
        return self._hash.hexdigest()


class CorpusFile:
    """A regular file that can be read twice: once for its digest, once for its records.

    :raises UsageError: when it is missing, empty, unreadable or not a file.
    """

    def __init__(self, uri: str) -> None:
        self.path = Path(uri)
        try:
            status = self.path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise UsageError(f"{uri} is a folder: give a file")
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{uri} is not a regular file: a corpus is read twice, so save it to a file first")
            with self.path.open("rb") as file:
                self.gzipped = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        except FileNotFoundError:
            raise UsageError(f"no file {uri}: check the path of the corpus") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"can't read {uri}: {getattr(error, 'strerror', None) or error}") from None
        self.size = status.st_size
        if self.size == 0:
            raise UsageError(f"{uri} is empty: a corpus needs at least one document")
        self._digest: str | None = None

    def digest(self, advance: Advance) -> str:
        """SHA-256 of the bytes as stored, as hex."""
        with self._reading(advance) as tap:
            self._digest = tap.drain()
        return self._digest

    @contextmanager
    def open(self, advance: Advance) -> Iterator[io.BufferedReader]:
        """The file's content, gzip undone. Leaving without an error checks that the file is still what was digested.

        :raises UsageError: for damaged gzip. :raises GleanerError: when it has changed.
        """
        with self._reading(advance) as tap:
            stored = io.BufferedReader(tap, _BUFFER_BYTES)
            try:
                if self.gzipped:
                    yield io.BufferedReader(gzip.GzipFile(fileobj=stored), _BUFFER_BYTES)
                else:
                    yield stored  # type: ignore[misc]
            except (gzip.BadGzipFile, zlib.error, EOFError) as error:
                raise UsageError(f"{self.path} is damaged gzip: {error}. Make it again or copy it again.") from None
            if self._digest is not None and tap.drain() != self._digest:
                raise GleanerError(
                    f"{self.path} changed while it was read: nothing was kept. Run this again when it is complete."
                )

    @contextmanager
    def _reading(self, advance: Advance) -> Iterator[_Tap]:
        try:
            with self.path.open("rb", buffering=0) as raw:
                yield _Tap(raw, advance)
        except OSError as error:
            raise GleanerError(f"can't read {self.path}: {error.strerror or error}") from None
