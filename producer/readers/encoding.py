"""Which encoding a text is in, and any encoding as UTF-8."""

import codecs
import io
import re
from dataclasses import dataclass

from producer.readers.base import library

_BOMS = (
    # UTF-32's begins as UTF-16's does.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Share of NULs among every other byte from which on a text without a mark is taken for UTF-16.
_NUL_SHARE = 0.4
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_HIGH = re.compile(rb"[\x80-\xff]")
#: Bytes that another encoding is guessed from: more does not make the guess better, only slower.
_GUESS_BYTES = 64 * 1024
_DECODED_BYTES = 64 * 1024
#: Stands for bytes that could not be decoded. No text in any encoding decodes to it, and it encodes to no UTF-8.
UNDECODED = "\udcff"
#: Error handler that puts it there. Python's own ``surrogateescape`` fails on UTF-16.
MARK = "gleaner.mark"


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODED, error.end


codecs.register_error(MARK, _mark)


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding as Python names it. ``guessed``: nothing in the file says so, and another would decode it too."""

    name: str
    guessed: bool = False


def known(encoding: str) -> bool:
    """Whether Python has a text encoding of this name."""
    try:
        return codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):  # a name that is no text raises the second
        return False


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names."""
    return next((name for mark, name in _BOMS if head.startswith(mark)), None)


def detect_encoding(head: bytes) -> Encoding:
    """The encoding of a text by its beginning: a byte order mark, UTF-16's pattern of NULs, UTF-8, else a guess.

    A few bytes that are no UTF-8 do not make a text another encoding: their records are rejected one by one.
    """
    marked = marked_encoding(head)
    if marked is not None:
        return Encoding(marked)
    if len(head) >= 4:
        for first, name in ((0, "utf-16-be"), (1, "utf-16-le")):
            if head[first::2].count(0) >= _NUL_SHARE * len(head[first::2]) and not head[1 - first :: 2].count(0):
                return Encoding(name)
    multibyte = _MULTIBYTE.findall(head)
    stray = len(_HIGH.findall(head)) - sum(map(len, multibyte))
    if stray <= 3 or stray <= len(multibyte):  # a character cut at the end leaves up to three
        return Encoding("utf-8")
    guess = library("charset_normalizer", "charset-normalizer", "an encoding that is not UTF-8")
    best = guess.from_bytes(head[:_GUESS_BYTES]).best()
    return Encoding(best.encoding if best else "cp1252", guessed=True)


class _Recoded(io.RawIOBase):
    """Text in any encoding as UTF-8. Bytes that can't be decoded stay what they are: no UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors=MARK)
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready and not self._ended:
            block = self._stream.read(_DECODED_BYTES)
            self._ended = not block
            self._ready = self._decoder.decode(block, self._ended).encode("utf-8", "surrogateescape")
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def as_utf8(stream: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """A stream of UTF-8, without a byte order mark, from one in ``encoding``."""
    if encoding == "utf-8":
        return stream
    if encoding == "utf-8-sig":
        if stream.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        return stream
    return io.BufferedReader(_Recoded(stream, encoding), _DECODED_BYTES)
