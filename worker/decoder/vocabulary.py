"""A tokenizer's tokens as bytes, and what each does inside a JSON string: prepared once a model, kept on disk."""

import json
import os
import random
import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from worker.decoder.text import BETWEEN, MODES, Scan, scan

#: Changes with what is kept on disk.
_FORMAT = 2
_NUMERIC = re.compile(rb'[0-9.eE+-]+([,}\]"].*)?', re.DOTALL)
#: In ``chars``: the token does not stay inside the string.
LEAVES = 255
#: In ``close``: no way back to between two characters. Such tokens are taken for ones that leave.
_NO_WAY = 255
#: Tokens read back in one piece, to see that the tokenizer's own decoder agrees with their bytes.
_CHECKED = 400

Numbers = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


class UnknownTokenizer(ValueError):
    """The tokenizer writes text in a way that is not known here; the message says which."""


class TokenList:
    """Byte strings in order, so that those with one beginning stand together."""

    def __init__(self, items: Sequence[tuple[bytes, int]]) -> None:
        """:param items: each with its number, sorted."""
        self.texts = [text for text, _ in items]
        self.numbers = np.array([number for _, number in items], np.int32)
        self._scans: dict[tuple[int, int, int], list[tuple[int, Scan]]] = {}

    def beginning(self, prefix: bytes, low: int, high: int) -> tuple[int, int]:
        """Of those from ``low`` to ``high``, the ones that begin with ``prefix``."""
        low = bisect_left(self.texts, prefix, low, high)
        if low == high or not self.texts[low].startswith(prefix):
            return low, low
        if prefix[-1] == 0xFF:
            end = next((n for n in range(low, high) if not self.texts[n].startswith(prefix)), high)
        else:
            end = bisect_left(self.texts, prefix[:-1] + bytes([prefix[-1] + 1]), low, high)
        return low, end

    def scans(self, low: int, high: int, depth: int) -> list[tuple[int, Scan]]:
        """What those from ``low`` to ``high`` do from byte ``depth`` on, where a string begins; some can't be there."""
        key = (low, high, depth)
        if key not in self._scans:
            found = ((n, scan(self.texts[n], BETWEEN, depth)) for n in range(low, high))
            self._scans[key] = [(n, item) for n, item in found if item.mode >= 0 or item.end >= 0]
        return self._scans[key]


@dataclass(frozen=True)
class Leaving:
    """Tokens that close a string, by what they do."""

    tokens: Numbers
    chars: Numbers  #: characters before the closing quote
    tails: Numbers  #: what follows it: a place in :attr:`Vocabulary.tails`


@dataclass
class Vocabulary:
    """What a label schema is compiled against.

    ``chars[mode, token]`` characters that begin in a token, read from a mode inside a string; :data:`LEAVES` if it does
    not stay there. ``modes`` is the mode it ends in, ``close`` how many tokens from there back between two characters.
    """

    size: int  #: one more than the largest token
    tokens: TokenList
    chars: Bytes
    modes: Bytes
    close: Bytes
    to_close: Bytes  #: ``close`` by mode
    leaving: list[Leaving]  #: by mode
    tails: TokenList  #: numbered by place
    fill: int  #: characters that one token can add to a string, as every smaller number of them
    numeric: TokenList  #: tokens that begin as a number does, and end in one or in what may follow it


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """What each token writes in the middle of a text; control tokens are left out.

    :raises UnknownTokenizer: when the decoder is of no known kind, or does otherwise.
    """
    state = json.loads(tokenizer.to_str())
    decoders = list(_decoders(state.get("decoder")))
    kinds = {decoder["type"] for decoder in decoders}
    added = {token["id"] for token in state.get("added_tokens", [])}
    vocabulary = {number: text for text, number in tokenizer.get_vocab().items() if number not in added}
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        found = {
            number: bytes(alphabet[char] for char in text)
            for number, text in vocabulary.items()
            if all(char in alphabet for char in text)
        }
    elif kinds & {"Metaspace", "ByteFallback", "Replace"}:
        spaces: list[Any] = [decoder.get("replacement") for decoder in decoders if decoder["type"] == "Metaspace"]
        spaces += [
            decoder["pattern"].get("String")
            for decoder in decoders
            if decoder["type"] == "Replace" and decoder["content"] == " "
        ]
        found = {number: _piece(text, spaces, "ByteFallback" in kinds) for number, text in vocabulary.items()}
    else:
        raise UnknownTokenizer(f"a tokenizer with the decoder {'+'.join(sorted(kinds)) or 'none'}")
    found = {number: text for number, text in found.items() if text}
    _check(tokenizer, found)
    return found


def _decoders(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is not None:
        yield decoder
        for part in decoder.get("decoders", []):
            yield from _decoders(part)


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes: printable ones as they are, others from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _piece(text: str, spaces: list[Any], bytes_too: bool) -> bytes:
    if bytes_too and (match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)):
        return bytes([int(match[1], 16)])
    for space in spaces:
        text = text.replace(space, " ")
    return text.encode("utf-8", "ignore")


def _check(tokenizer: Tokenizer, found: dict[int, bytes]) -> None:
    """Compare with the tokenizer's decoder, behind a first token, which some decoders treat in a way of its own."""
    first = next((number for number, text in sorted(found.items()) if text == b"a"), None)
    whole = [number for number, text in sorted(found.items()) if _is_text(text) and not text.startswith(b"<0x")]
    if first is None or not whole:
        raise UnknownTokenizer("a tokenizer without a token for `a`")
    sample = random.Random(0).sample(whole, min(_CHECKED, len(whole)))
    decoded = tokenizer.decode([first, *sample], skip_special_tokens=False)
    expected = "a" + b"".join(found[number] for number in sample).decode()
    if decoded != expected:
        raise UnknownTokenizer("a tokenizer whose decoder changes what tokens write by what stands beside them")


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def prepare(found: dict[int, bytes], size: int) -> Vocabulary:
    """Read every token from every mode inside a string.

    :param found: see :func:`token_bytes`. :param size: one more than the largest token, control tokens counted.
    """
    chars = np.full((len(MODES), size), LEAVES, np.uint8)
    modes = np.zeros((len(MODES), size), np.uint8)
    ends: list[list[tuple[int, int, bytes]]] = []
    by_first: dict[int, list[tuple[int, bytes]]] = {}
    for number, text in sorted(found.items()):
        by_first.setdefault(text[0], []).append((number, text))
    for mode in range(len(MODES)):
        ends.append([])
        for group in by_first.values():
            # One look at the first byte spares most modes most tokens.
            first = scan(group[0][1][:1], mode)
            if first.mode < 0 and first.end < 0:
                continue
            for number, text in group:
                read = scan(text, mode)
                if read.end >= 0:
                    ends[mode].append((number, read.chars, text[read.end :]))
                elif read.mode >= 0 and read.chars < LEAVES:
                    chars[mode, number], modes[mode, number] = read.chars, read.mode
    tails = sorted({tail for mode_ends in ends for _, _, tail in mode_ends})
    place = {tail: n for n, tail in enumerate(tails)}
    leaving = [
        Leaving(
            *(
                np.array(column, np.int32)
                for column in ([n for n, _, _ in e], [c for _, c, _ in e], [place[t] for _, _, t in e])
            )
        )
        for e in ends
    ]
    to_close = _distances(chars, modes)
    close = to_close[modes]
    chars[close == _NO_WAY] = LEAVES
    lengths = set(chars[BETWEEN][(chars[BETWEEN] != LEAVES) & (modes[BETWEEN] == BETWEEN)].tolist())
    fill = next(n for n in range(1, LEAVES + 1) if n + 1 not in lengths)
    tokens = sorted((text, number) for number, text in found.items())
    return Vocabulary(
        size=size,
        tokens=TokenList(tokens),
        chars=chars,
        modes=modes,
        close=close,
        to_close=to_close,
        leaving=leaving,
        tails=TokenList([(tail, n) for n, tail in enumerate(tails)]),
        fill=fill,
        numeric=TokenList([(text, number) for text, number in tokens if _NUMERIC.fullmatch(text)]),
    )


def _distances(chars: Bytes, modes: Bytes) -> Bytes:
    """Fewest tokens from each mode to between two characters, none of which begins another character."""
    distances = np.full(len(MODES), _NO_WAY, np.uint8)
    distances[BETWEEN] = 0
    for _ in MODES:
        for mode in range(len(MODES)):
            if mode != BETWEEN:
                nearest = distances[modes[mode][chars[mode] == 0]].min(initial=_NO_WAY)
                distances[mode] = min(int(distances[mode]), int(nearest) + 1, _NO_WAY)
    return distances


def load_vocabulary(tokenizer: Tokenizer, folder: Path) -> tuple[Vocabulary, Path]:
    """The vocabulary of a tokenizer, and its file in ``folder``, which is written unless it is there.

    :raises UnknownTokenizer: see :func:`token_bytes`.
    """
    digest = sha256(f"{_FORMAT}:{tokenizer.to_str()}".encode()).hexdigest()[:24]
    file = folder / f"vocabulary-{digest}.npz"
    if file.exists():
        return read_vocabulary(file), file
    vocabulary = prepare(token_bytes(tokenizer), max(tokenizer.get_vocab().values()) + 1)
    write_vocabulary(vocabulary, file)
    return vocabulary, file


def write_vocabulary(vocabulary: Vocabulary, file: Path) -> None:
    """Write a vocabulary, all of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    ends = {
        f"{name}{mode}": getattr(leaving, name)
        for mode, leaving in enumerate(vocabulary.leaving)
        for name in ("tokens", "chars", "tails")
    }
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as fresh:
        np.savez(
            fresh,
            allow_pickle=False,
            chars=vocabulary.chars,
            modes=vocabulary.modes,
            close=vocabulary.close,
            to_close=vocabulary.to_close,
            sizes=np.array([vocabulary.size, vocabulary.fill]),
            numbers=vocabulary.tokens.numbers,
            **_packed("token", vocabulary.tokens.texts),
            **_packed("tail", vocabulary.tails.texts),
            numeric_numbers=vocabulary.numeric.numbers,
            **_packed("numeric", vocabulary.numeric.texts),
            **{f"leaving_{name}": numbers for name, numbers in ends.items()},
        )
    # Workers that start at once write the same; the last one wins.
    Path(fresh.name).chmod(0o644)
    os.replace(fresh.name, file)


def _packed(name: str, texts: list[bytes]) -> dict[str, npt.NDArray[Any]]:
    return {
        f"{name}_bytes": np.frombuffer(b"".join(texts), np.uint8),
        f"{name}_lengths": np.array([len(text) for text in texts], np.int32),
    }


def read_vocabulary(file: Path) -> Vocabulary:
    """Read what :func:`write_vocabulary` has written."""
    with np.load(file) as kept:
        return _read(kept)


def _read(kept: Any) -> Vocabulary:
    size, fill = kept["sizes"].tolist()
    tails = _unpacked("tail", kept)
    return Vocabulary(
        size=size,
        tokens=TokenList(list(zip(_unpacked("token", kept), kept["numbers"].tolist(), strict=True))),
        chars=kept["chars"],
        modes=kept["modes"],
        close=kept["close"],
        to_close=kept["to_close"],
        leaving=[
            Leaving(*(kept[f"leaving_{name}{mode}"] for name in ("tokens", "chars", "tails")))
            for mode in range(len(MODES))
        ],
        tails=TokenList([(tail, n) for n, tail in enumerate(tails)]),
        fill=fill,
        numeric=TokenList(list(zip(_unpacked("numeric", kept), kept["numeric_numbers"].tolist(), strict=True))),
    )


def _unpacked(name: str, kept: Any) -> list[bytes]:
    data, lengths = kept[f"{name}_bytes"].tobytes(), kept[f"{name}_lengths"]
    ends = np.cumsum(lengths).tolist()
    return [data[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
