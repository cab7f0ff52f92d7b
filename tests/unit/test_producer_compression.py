"""Compressed corpora: every stream of a file is read, and one that is not whole is refused, never taken for shorter."""

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from producer.readers.compression import Decompressed
from producer.readers.file import CorpusFile
from schemas.errors import UsageError

#: Of several blocks in zstd, so that it can be cut where one ends; drawn, so that it does not shrink to nothing.
CONTENT = b"".join(
    b'{"id": %d}\n' % random.Random(1).getrandbits(60) + random.Random(n).randbytes(9) for n in range(20_000)
)
Compress = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def zstd_unsized(content: bytes) -> bytes:
    """As a pipe is compressed: the frame does not say how long its content is, and is flushed in the middle."""
    compressor = zstandard.ZstdCompressor().compressobj()
    half = len(content) // 2
    flushed = compressor.compress(content[:half]) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return flushed + compressor.compress(content[half:]) + compressor.flush()


def skippable(content: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


STREAMS: dict[str, tuple[str, Compress]] = {
    "gzip": ("gzip", gzip.compress),
    "bzip2": ("bzip2", bz2.compress),
    "xz": ("xz", lzma.compress),
    "zstd": ("zstd", zstd),
    "unsized zstd": ("zstd", zstd_unsized),
}
each_kind = pytest.mark.parametrize(("kind", "compress"), STREAMS.values(), ids=STREAMS)


def content_of(path: Path, stored: bytes) -> bytes:
    path.write_bytes(stored)
    with CorpusFile(str(path)).open(lambda _: None) as stream:
        return stream.read()


def refused(path: Path, stored: bytes, kind: str) -> None:
    with pytest.raises(UsageError, match=f"damaged {kind}: .+ Make it again"):
        content_of(path, stored)


@each_kind
def test_several_streams_are_one_content(tmp_path: Path, kind: str, compress: Compress) -> None:
    parts = (CONTENT, b"", CONTENT[:10], b"")
    assert content_of(tmp_path / "corpus", b"".join(map(compress, parts))) == b"".join(parts)
    assert CorpusFile(str(tmp_path / "corpus")).compression == kind


@each_kind
@pytest.mark.parametrize("before", [b"", CONTENT])
def test_a_stream_that_is_cut_is_refused(tmp_path: Path, kind: str, compress: Compress, before: bytes) -> None:
    whole = compress(before) if before else b""
    stored = compress(CONTENT)
    for kept in (6, 100, len(stored) // 2, len(stored) - 9, len(stored) - 1):
        refused(tmp_path / "corpus", whole + stored[:kept], kind)


def test_a_zstd_frame_that_is_cut_where_a_block_ends_is_refused(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    stored = compressor.compress(CONTENT) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    refused(tmp_path / "corpus", stored, "zstd")
    assert content_of(tmp_path / "corpus", stored + compressor.flush()) == CONTENT


@each_kind
@pytest.mark.parametrize("garbage", [b"B", b"garbage behind the stream", b"{}\n" * 5_000])
def test_what_follows_and_is_no_stream_is_refused(
    tmp_path: Path, kind: str, compress: Compress, garbage: bytes
) -> None:
    refused(tmp_path / "corpus", compress(CONTENT) + garbage, kind)


@each_kind
def test_a_later_stream_that_is_damaged_is_refused(tmp_path: Path, kind: str, compress: Compress) -> None:
    later = bytearray(compress(CONTENT))
    for place in (0, 1, 3):
        damaged = later[:place] + bytes([later[place] ^ 0xFF]) + later[place + 1 :]
        refused(tmp_path / "corpus", compress(CONTENT) + damaged, kind)


@pytest.mark.parametrize("zeros", [4, 8, 4096, 40_000])
def test_xz_may_be_padded_in_fours(tmp_path: Path, zeros: int) -> None:
    one = lzma.compress(CONTENT)
    padding = bytes(zeros)
    assert content_of(tmp_path / "corpus", one + padding + one + padding) == CONTENT * 2
    refused(tmp_path / "corpus", one + padding + b"\0", "xz")
    refused(tmp_path / "corpus", one + padding + b"\0" + one, "xz")
    refused(tmp_path / "corpus", one + padding + b"{}", "xz")


@pytest.mark.parametrize("number", [0, 15])
def test_zstd_frames_without_content_are_skipped(tmp_path: Path, number: int) -> None:
    """pzstd writes one before each frame, so that the file begins with it."""
    aside = bytes([0x50 + number]) + skippable(b"12345678")[1:]
    stored = aside + zstd(CONTENT) + aside + zstd(b"more") + aside
    assert content_of(tmp_path / "corpus", stored) == CONTENT + b"more"
    refused(tmp_path / "corpus", stored[:-1], "zstd")


@pytest.mark.parametrize("kind", ["bzip2", "xz", "zstd"])
def test_content_is_never_held_in_memory(tmp_path: Path, kind: str) -> None:
    """Zeros, of which few bytes make many."""
    stored = STREAMS[kind][1](bytes(1_000_000)) * 400
    tracemalloc.start()
    try:
        stream = io.BufferedReader(Decompressed(io.BytesIO(stored), kind, "zeros"), 65_536)
        count = sum(map(len, iter(lambda: stream.read(65_536), b"")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 400_000_000
    assert peak < 100_000_000
