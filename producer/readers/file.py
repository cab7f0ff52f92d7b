"""A file as a stream of bytes, compression undone, with the bytes as stored counted and hashed on the way."""

import gzip
import io
import lzma
import os
import shutil
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from producer.readers.base import Advance
from producer.readers.compression import Decompressed
from schemas.errors import GleanerError, UsageError

#: How a zstd frame begins that holds no content; pzstd puts one before each of the others (RFC 8878, 3.1.2).
_SKIPPABLE = tuple(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))
#: How the bytes of each kind of compression begin.
_MAGIC = {
    "gzip": (b"\x1f\x8b",),
    "bzip2": (b"BZh",),
    "xz": (b"\xfd7zXZ\x00",),
    "zstd": (b"\x28\xb5\x2f\xfd", *_SKIPPABLE),
}
#: Bytes that tell which.
_MAGIC_BYTES = max(len(magic) for kind in _MAGIC.values() for magic in kind)
#: Endings that say no more than the first bytes do.
COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
#: Bytes a read: beyond about 1 MiB the system call no longer counts.
_BUFFER_BYTES = 1024 * 1024
#: What the libraries raise for damaged bytes; zstd's own error is one of the last.
_DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


class _Tap(io.RawIOBase):
    """Passes bytes on and counts them."""

    def __init__(self, raw: io.FileIO, advance: Advance) -> None:
        self._raw = raw
        self._advance = advance
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._raw.readinto(buffer) or 0
        self._count += count
        self._advance(self._count)
        return count


class CorpusFile:
    """A regular file that can be read twice: once for its digest, once for its records.

    :param uri: what to call it, if it is a copy of something that lies elsewhere.
    :raises UsageError: when it is missing, unreadable or not a file.
    """

    def __init__(self, path: str, uri: str | None = None) -> None:
        self.path = Path(path)
        self.name = uri or path
        self.uri = uri or str(self.path.absolute())
        try:
            status = self.path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise UsageError(f"{self.name} is a folder: give a file")
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{self.name} is not a regular file: a corpus is read twice, so save it to a file")
            with self.path.open("rb") as file:
                first = file.read(_MAGIC_BYTES)
        except FileNotFoundError:
            raise UsageError(f"no file {self.name}: check the path of the corpus") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"can't read {self.name}: {getattr(error, 'strerror', None) or error}") from None
        self.compression = next((kind for kind, magic in _MAGIC.items() if first.startswith(magic)), None)
        self.size = status.st_size
        #: What the file was like when it was digested.
        self._digested: tuple[int, ...] | None = None

    @property
    def plain_name(self) -> str:
        """The name without an ending that only tells of compression."""
        name = self.name
        for ending in COMPRESSED_ENDINGS:
            name = name.removesuffix(ending)
        return name

    def head(self, count: int) -> bytes:
        """The content's first bytes, compression undone.

        :raises UsageError: for damaged compression.
        """
        with self._reading(lambda _: None) as tap:
            return self._plain(tap).read(count)

    def digest(self, advance: Advance) -> str:
        """SHA-256 of the bytes as stored, as hex."""
        self._digested = self._state()
        parts = sha256()
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        with self._reading(advance) as tap:
            while count := tap.readinto(buffer):
                parts.update(buffer[:count])
        return parts.hexdigest()

    @contextmanager
    def open(self, advance: Advance) -> Iterator[io.BufferedReader]:
        """The file's content, compression undone. Leaving without an error checks that the file is still what was
        digested.

        :raises UsageError: for damaged compression. :raises GleanerError: when it has changed.
        """
        with self._reading(advance) as tap:
            yield self._plain(tap)
            self._check_unchanged()

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """A path with the file's content, compression undone, for libraries that jump about in a file.

        :raises UsageError: for damaged compression. :raises GleanerError: when it has changed.
        """
        if self.compression is None:
            yield self.path
        else:
            with tempfile.NamedTemporaryFile(prefix="gleaner-") as copy:
                with self.open(lambda _: None) as stream:
                    shutil.copyfileobj(stream, copy, _BUFFER_BYTES)
                copy.flush()
                yield Path(copy.name)
        self._check_unchanged()

    def _state(self) -> tuple[int, ...]:
        status = self.path.stat()
        # No write leaves all of them as they were: not even one that sets the time of the last write back.
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _check_unchanged(self) -> None:
        if self._digested is not None and self._state() != self._digested:
            raise GleanerError(
                f"{self.name} changed while it was read: nothing was kept. Run this again when it is complete."
            )

    def _plain(self, tap: _Tap) -> io.BufferedReader:
        stored = io.BufferedReader(tap, _BUFFER_BYTES)
        match self.compression:
            case "gzip":
                raw: Any = gzip.GzipFile(fileobj=stored)
            case None:
                return stored  # type: ignore[return-value]
            case kind:
                raw = Decompressed(stored, kind, self.name)
        return io.BufferedReader(raw, _BUFFER_BYTES)

    @contextmanager
    def _reading(self, advance: Advance) -> Iterator[_Tap]:
        try:
            with self.path.open("rb", buffering=0) as raw:
                yield _Tap(raw, advance)
        except _DAMAGE as error:
            raise self._damaged(error) from None
        except OSError as error:
            if error.errno is None:  # bz2 says so of bytes that are none of its own
                raise self._damaged(error) from None
            raise GleanerError(f"can't read {self.name}: {error.strerror or error}") from None
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(f"{self.name} is damaged {self.compression}: {error}. Make it again or copy it again.")


def spooled(stream: io.BufferedIOBase, uri: str, advance: Advance) -> CorpusFile:
    """Something that can be read only once, kept as a temporary file until nobody needs it any more.

    :raises GleanerError: when the disk is full.
    """

    def fill(name: str) -> None:
        with open(name, "wb") as copy:
            count = 0
            # What there is, not the whole: a signal that comes between the reads of a whole is heeded only at the next.
            while block := stream.read1(_BUFFER_BYTES):
                copy.write(block)
                count += len(block)
                advance(count)

    try:
        return temporary(fill, uri)
    except OSError as error:
        raise no_copy(uri, error) from None


def temporary(fill: Callable[[str], None], uri: str) -> CorpusFile:
    """A temporary file, kept until nobody needs it any more.

    :param fill: writes the file of the name that it is given. When it fails nothing stays behind.
    """
    handle, name = tempfile.mkstemp(prefix="gleaner-")
    os.close(handle)
    try:
        fill(name)
        file = CorpusFile(name, uri)
    except BaseException:
        with suppress(FileNotFoundError):  # some clients of stores remove what they could not finish
            os.unlink(name)
        raise
    weakref.finalize(file, os.unlink, name)
    return file


def no_copy(uri: str, error: OSError) -> GleanerError:
    """The error for a disk that does not take a copy."""
    return GleanerError(
        f"can't keep a copy of {uri} in {tempfile.gettempdir()}: {error.strerror or error}. TMPDIR names another place."
    )
