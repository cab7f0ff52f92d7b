"""Which encoding a text is in, and any encoding as UTF-8."""

import codecs
import io
import re
from dataclasses import dataclass

from producer.readers.base import library
from schemas.errors import UsageError

_BOMS = (
    # UTF-32's begins as UTF-16's does.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Bytes of the longest byte order mark.
MARK_BYTES = 4
#: Share of NULs among every other byte from which on a text without a mark is taken for UTF-16.
_NUL_SHARE = 0.4
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_HIGH = re.compile(rb"[\x80-\xff]")
#: A beginning that is shorter is a whole file: no reader looks at less.
_HEAD_BYTES = 64 * 1024
#: Bytes that another encoding is guessed from: the library looks at five pieces of 512 bytes.
_GUESS_BYTES = 16 * 1024
#: Bytes of one character that may be cut off at the end of a beginning.
_CUT = re.compile(rb"[\xc2-\xf4][\x80-\xbf]{0,2}\Z")
#: Lines that tell of an encoding: in a table that is English for the most part the others would outvote them.
_TELLING = re.compile(rb"[^\r\n]*[\x80-\xff][^\r\n]*")
#: What Windows writes in the West: taken where no other makes more of a text.
_WESTERN = "cp1252"
#: What is guessed: encodings that files of texts are found in today. Those of DOS and of old Macs, of which there are
#: dozens, fit nearly any bytes.
_LIKELY = [
    *(_WESTERN, "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp850"),
    *("iso8859_2", "iso8859_5", "iso8859_7", "koi8_r"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
]
#: Where lines do not end as in Windows.
_OF_MACS = ["mac_roman", "mac_cyrillic"]
#: How much of a text may look like a mess (of what is there, from 0 to 1), and by how much one encoding must leave less
#: of it than Windows's to be taken: texts of prices and quotes differ by 0.01, those that are MacRoman by 0.05.
_MESS, _LESS_MESS = 0.3, 0.02
#: Characters shown around the first that is no ASCII, for people to see whether a guess is right.
_SHOWN_CHARS = 20
_DECODED_BYTES = 64 * 1024
#: Stands for bytes that could not be decoded. No text in any encoding decodes to it, and it encodes to no UTF-8.
UNDECODED = "\udcff"
#: Error handler that puts it there. Python's own ``surrogateescape`` fails on UTF-16.
MARK = "gleaner.mark"
#: What many encodings can't decode: one byte, as UTF-16 needs a byte order mark before more of them.
_UNDECODABLE = b"\x80"


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODED, error.end


codecs.register_error(MARK, _mark)


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding as Python names it."""

    name: str
    given: bool = False  #: by the user
    #: Some of the text, where nothing in the file names the encoding: another would decode it too.
    guessed: str = ""

    @property
    def words(self) -> str:
        """The encoding for people."""
        if not self.guessed:
            return self.name
        return f"{self.name} (a guess, which reads {self.guessed!r}: --encoding for another)"

    def undecoded(self, what: str) -> str:
        """Why a record is rejected that is not in this encoding. :param what: what the record is in its file."""
        if self.given:
            return f"the {what} is not {self.name}, as --encoding says: leave it out, or name another"
        return f"the {what} is not {self.name}: it is damaged, or --encoding names the right one"


def known(encoding: str) -> bool:
    """Whether Python has a text encoding of this name that goes on after bytes it can't decode."""
    try:
        if not codecs.lookup(encoding)._is_text_encoding:
            return False
        codecs.getincrementaldecoder(encoding)(errors=MARK).decode(_UNDECODABLE, True)
    except (LookupError, ValueError):  # a name that is no text raises the second, as do idna, punycode and undefined
        return False
    return True


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names."""
    return next((name for mark, name in _BOMS if head.startswith(mark)), None)


def wide_encoding(head: bytes) -> str | None:
    """The encoding of a text that has a byte order mark, or UTF-16's pattern of NULs."""
    marked = marked_encoding(head)
    if marked is None and len(head) >= 4:
        for first, name in ((0, "utf-16-be"), (1, "utf-16-le")):
            if head[first::2].count(0) >= _NUL_SHARE * len(head[first::2]) and not head[1 - first :: 2].count(0):
                return name
    return marked


def check_marked(encoding: str, head: bytes, name: str) -> None:
    """Refuse an encoding whose bytes may stand in either order for a file that does not say in which.

    :param name: of the file. :raises UsageError: names the encodings that say it.
    """
    known_as = codecs.lookup(encoding).name
    if known_as in ("utf-16", "utf-32") and marked_encoding(head) is None:
        raise UsageError(
            f"{name} has no byte order mark: give --encoding {known_as}-le, as Windows writes it, or {known_as}-be"
        )


def detect_encoding(head: bytes) -> Encoding:
    """The encoding of a text by its beginning: a byte order mark, UTF-16's pattern of NULs, UTF-8, else a guess.

    A few bytes that are no UTF-8 among characters that are do not make a text another encoding: their records are
    rejected one by one. Where several leave a text as tidy, that of Windows in the West is taken: those of its
    neighbours have most letters in the same places.

    :param head: all of the text, or at least 64 KiB.
    """
    wide = wide_encoding(head)
    if wide is not None:
        return Encoding(wide)
    if len(head) >= _HEAD_BYTES:
        head = _CUT.sub(b"", head)
    multibyte = _MULTIBYTE.findall(head)
    stray = len(_HIGH.findall(head)) - sum(map(len, multibyte))
    if stray <= len(multibyte):
        return Encoding("utf-8")
    lines = list(dict.fromkeys(_TELLING.findall(head)))  # the same again would only outvote others
    return _guessed(lines, _LIKELY if b"\r\n" in head else [*_LIKELY, *_OF_MACS])


def _guessed(lines: list[bytes], likely: list[str]) -> Encoding:
    guess = library("charset_normalizer", "charset-normalizer", "guessing an encoding (--encoding names it)")
    telling = b"\n".join(lines)
    if len(telling) > _GUESS_BYTES:  # at the end of a line: not in the middle of a character
        telling = telling[:_GUESS_BYTES].rpartition(b"\n")[0] or telling[:_GUESS_BYTES]
    found = list(guess.from_bytes(telling, cp_isolation=likely, threshold=_MESS)) or list(guess.from_bytes(telling))
    tidy = [match for match in found if match.chaos <= found[0].chaos + _LESS_MESS]
    western = not found or any(_WESTERN in match.could_be_from_charset for match in tidy)
    name = _WESTERN if western else found[0].encoding
    text = lines[0].decode(name, "replace")
    first = next((number for number, char in enumerate(text) if not char.isascii()), 0)
    return Encoding(name, guessed=text[max(0, first - _SHOWN_CHARS) : first + _SHOWN_CHARS].strip(" \t"))


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
