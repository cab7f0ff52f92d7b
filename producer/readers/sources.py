"""What a user calls a corpus, found: files, folders, globs, URLs, stdin."""

import glob
import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from producer.readers.base import Advance
from producer.readers.file import CorpusFile, spooled
from schemas.errors import UsageError

STDIN = "-"
#: How the address of a Postgres database begins.
POSTGRES = ("postgresql://", "postgres://")
#: Begins the names of files beside the data that are none: hidden ones, and Spark's marks.
_ASIDE = (".", "_")
#: What makes a path a glob.
WILD = "*?["


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a corpus, and what it is called there: its path below the folder that was given, or its name."""

    file: CorpusFile
    name: str


def find_files(sources: Sequence[str], timeout_s: float, advance: Advance) -> list[Found]:
    """The files of a corpus, in the order given; those of a folder or a glob by name.

    :param timeout_s: seconds without a byte after which a connection to a URL counts as lost.
    :param advance: told of the bytes of what must be copied here first: URLs, stdin, pipes.
    :raises UsageError: when there is none. :raises GleanerError: when one can't be fetched.
    """
    found: list[Found] = []
    for source in sources:
        if source == STDIN:
            if sys.stdin is None:  # the shell's <&-
                raise UsageError("stdin is closed: pipe a corpus into it, or name a file instead of -")
            stdin = cast(io.BufferedIOBase, sys.stdin.buffer)
            found.append(Found(spooled(stdin, "stdin", advance), "stdin"))
        elif "://" in source:
            from producer.readers.remote import fetch  # noqa: PLC0415

            found += fetch(source, timeout_s, advance)
        else:
            found += _local(source, advance)
    return found


def _local(source: str, advance: Advance) -> list[Found]:
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        if any(mark in source for mark in WILD):
            return _matching(source)
        return [Found(CorpusFile(source), path.name)]  # which says what is wrong
    if stat.S_ISDIR(mode):
        return _in_folder(path)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            stream = path.open("rb")
        except OSError as error:
            raise UsageError(f"can't read {source}: {error.strerror or error}") from None
        with stream:
            if stat.S_ISCHR(mode) and not stream.isatty():
                raise UsageError(f"{source} is a device, which may have no end: give a file, or - for stdin")
            return [Found(spooled(stream, source, advance), path.name)]
    return [Found(CorpusFile(source), path.name)]


def _matching(pattern: str) -> list[Found]:
    above = os.path.dirname(pattern)
    while True:
        # What glob can't list it leaves out without a word.
        for folder in glob.glob(above, recursive=True) if above else ["."]:
            if os.path.isdir(folder):
                _entries(folder)
        if not any(mark in above for mark in WILD):
            break
        above = os.path.dirname(above)
    names = sorted(name for name in glob.glob(pattern, recursive=True) if not os.path.isdir(name))
    if not names:
        raise UsageError(f"no file matches {pattern}: check the path of the corpus")
    return [Found(_file(name), name) for name in names]


def _in_folder(folder: Path) -> list[Found]:
    paths = sorted(Path(path) for path in _below(str(folder), ()))
    if not paths:
        raise UsageError(f"{folder} is a folder without a file: a corpus needs at least one document")
    return [Found(_file(str(path)), str(path.relative_to(folder))) for path in paths]


def _below(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """The files below a folder. Links to folders are followed. :param above: the folders it is in, without links."""
    real = os.path.realpath(folder)
    if real in above:
        raise UsageError(f"{folder} is a link to a folder that it is in: remove it, or give the files by a glob")
    for entry in _entries(folder):
        if is_aside([entry.name]):
            continue
        if os.path.isdir(entry.path):  # entry.is_dir() raises for a link to itself
            yield from _below(entry.path, (*above, real))
        else:
            yield entry.path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise UsageError(
            f"can't read the folder {folder}: {error.strerror or error}. Allow it (chmod u+rx), or give the files "
            "beside it by a glob"
        ) from None


def _file(path: str) -> CorpusFile:
    if os.path.islink(path) and not os.path.exists(path):
        raise UsageError(f"{path} is a link that leads to no file: mend or remove it, or leave it out by a glob")
    return CorpusFile(path)


def is_aside(parts: Iterable[str]) -> bool:
    """Whether a path below a folder, in parts, is of a file beside the data."""
    return any(part.startswith(_ASIDE) for part in parts)


def without_secrets(url: str) -> str:
    """A URL without user, password and query: signed addresses hold a key."""
    return "::".join(map(_plain, url.split("::")))


def _plain(url: str) -> str:
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket in the host
        return url.partition("://")[0] + "://..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
