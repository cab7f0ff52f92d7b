"""What a user calls a corpus, found: files, folders, globs, URLs, stdin."""

import glob
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
            found.append(Found(spooled(sys.stdin.buffer, "stdin", advance), "stdin"))
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
            names = sorted(name for name in glob.glob(source, recursive=True) if os.path.isfile(name))
            if not names:
                raise UsageError(f"no file matches {source}: check the path of the corpus") from None
            return [Found(CorpusFile(name), name) for name in names]
        return [Found(CorpusFile(source), path.name)]  # which says what is wrong
    if stat.S_ISDIR(mode):
        return _in_folder(path)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with path.open("rb") as stream:
            return [Found(spooled(stream, source, advance), path.name)]
    return [Found(CorpusFile(source), path.name)]


def _in_folder(folder: Path) -> list[Found]:
    found = [
        Found(CorpusFile(str(path)), str(path.relative_to(folder)))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_aside(path.relative_to(folder).parts)
    ]
    if not found:
        raise UsageError(f"{folder} is a folder without a file: a corpus needs at least one document")
    return found


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
