"""Compressed streams that lie one behind another in a file, each of which must be whole."""

import bz2
import io
import lzma
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from producer.readers.base import library

#: Stored bytes that a decompressor gets at a time, which bounds what it gives: zstd makes at most 128 KiB of four, so
#: 128 MiB of this; bzip2 and xz make less. Four times as much was no faster.
_PIECE_BYTES = 4096
#: Zeros may lie between and behind the streams of an .xz, in multiples of this (section 2.2 of the format).
_XZ_PADDING_BYTES = 4


class _Decompressor(Protocol):
    """Of one stream: what the standard library's and zstandard's have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Decompressed(io.RawIOBase):
    """The content of every stream of a file. The readers that the libraries bring take what is no stream, or only half
    of one, for the end.

    :param kind: ``bzip2``, ``xz`` or ``zstd``.
    :param name: of the file, for the error.
    :raises UsageError: when the library for it is missing. :raises EOFError: from reads, when the last stream is cut
        off; for other damage what the library raises.
    """

    def __init__(self, stored: IO[bytes], kind: str, name: str) -> None:
        self._blocks = filter(None, _contents(stored, _maker(kind, name), padded=kind == "xz"))
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = 0
        while count < len(buffer):
            if not self._block:
                self._block = memoryview(next(self._blocks, b""))
                if not self._block:
                    break
            part = self._block[: len(buffer) - count]
            buffer[count : count + len(part)] = part
            self._block = self._block[len(part) :]
            count += len(part)
        return count


def _contents(stored: IO[bytes], new: Callable[[], _Decompressor], padded: bool) -> Iterator[bytes]:
    rest = stored.read(_PIECE_BYTES)
    while rest:
        stream = new()
        yield stream.decompress(rest)
        while not stream.eof:
            piece = stored.read(_PIECE_BYTES)
            if not piece:
                raise EOFError("it ends in the middle of a stream")
            yield stream.decompress(piece)
        rest = stream.unused_data or stored.read(_PIECE_BYTES)
        if padded:
            rest = _without_padding(rest, stored)


def _without_padding(rest: bytes, stored: IO[bytes]) -> bytes:
    zeros = 0
    while rest.startswith(b"\0"):
        after = rest.lstrip(b"\0")
        zeros += len(rest) - len(after)
        rest = after or stored.read(_PIECE_BYTES)
    if zeros % _XZ_PADDING_BYTES:
        raise lzma.LZMAError(f"{zeros} zeros behind a stream")
    return rest


def _maker(kind: str, name: str) -> Callable[[], _Decompressor]:
    match kind:
        case "bzip2":
            return bz2.BZ2Decompressor
        case "xz":
            return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)
        case _:
            zstandard = library("zstandard", "zstandard", f"{name}: zstd")
            make: Callable[[], _Decompressor] = zstandard.ZstdDecompressor().decompressobj
            return make
