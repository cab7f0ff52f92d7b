"""The inside of a JSON string, byte by byte: UTF-8 without lone surrogates, JSON's escapes, no NUL."""

from typing import NamedTuple

QUOTE = ord('"')
_BACKSLASH = ord("\\")
_HEX = b"0123456789abcdefABCDEF"


def _span(first: int, last: int) -> range:
    return range(first, last + 1)


def _machine() -> tuple[tuple[str, ...], list[dict[int, int]]]:
    """States by name, and for each the next one by byte. Leaving out the closing quote, which is no state."""
    rest: dict[str, dict[range | bytes, str]] = {
        # UTF-8: how many bytes are still to come, and the first ones that may not be any.
        "one": {_span(0x80, 0xBF): "text"},
        "two": {_span(0x80, 0xBF): "one"},
        "three": {_span(0x80, 0xBF): "two"},
        "e0": {_span(0xA0, 0xBF): "one"},  # shorter forms are no UTF-8
        "ed": {_span(0x80, 0x9F): "one"},  # surrogates are none
        "f0": {_span(0x90, 0xBF): "two"},
        "f4": {_span(0x80, 0x8F): "two"},  # beyond U+10FFFF
        # Escapes: 000 must not end as NUL; d8 to db begin a pair, dc to df may only end one.
        "escape": {b'"\\/bfnrt': "text", b"u": "u"},
        "u": {b"0": "u0", b"dD": "ud", b"123456789abcefABCEF": "ux"},
        "u0": {b"0": "u00", _HEX[1:]: "uxx"},
        "u00": {b"0": "u000", _HEX[1:]: "uxxx"},
        "u000": {_HEX[1:]: "text"},
        "ux": {_HEX: "uxx"},
        "uxx": {_HEX: "uxxx"},
        "uxxx": {_HEX: "text"},
        "ud": {b"01234567": "uxx", b"89abAB": "high"},
        "high": {_HEX: "high1"},
        "high1": {_HEX: "pair"},
        "pair": {b"\\": "pair\\"},
        "pair\\": {b"u": "pair u"},
        "pair u": {b"dD": "pair d"},
        "pair d": {b"cdefCDEF": "uxx"},
    }
    names = ("text", *rest)
    number = {name: n for n, name in enumerate(names)}
    text: dict[range | bytes, str] = {
        _span(0x20, 0x7F): "text",
        b"\\": "escape",
        _span(0xC2, 0xDF): "one",
        _span(0xE0, 0xEF): "two",
        b"\xe0": "e0",
        b"\xed": "ed",
        _span(0xF1, 0xF3): "three",
        b"\xf0": "f0",
        b"\xf4": "f4",
    }
    steps = [
        {byte: number[target] for bytes_, target in part.items() for byte in bytes_} for part in (text, *rest.values())
    ]
    del steps[0][QUOTE]
    return names, steps


MODES, STEPS = _machine()
#: The mode between two characters.
BETWEEN = 0


class Scan(NamedTuple):
    """How far a run of bytes goes inside a string."""

    chars: int  #: characters that begin in it
    mode: int  #: where it ends, if it stays inside; -1 if it does not
    end: int  #: the position behind the closing quote, if it has one; -1 if not. Both -1: no part of a string.


def scan(data: bytes, mode: int, start: int = 0) -> Scan:
    """Read bytes from a mode inside a string on, up to the closing quote."""
    chars = 0
    for position in range(start, len(data)):
        byte = data[position]
        following = STEPS[mode].get(byte)
        if following is None:
            if mode == BETWEEN and byte == QUOTE:
                return Scan(chars, -1, position + 1)
            return Scan(chars, -1, -1)
        chars += mode == BETWEEN
        mode = following
    return Scan(chars, mode, -1)
