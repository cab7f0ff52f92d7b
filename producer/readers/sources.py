"""What a user calls a corpus, found: files, folders, globs, URLs, stdin."""

import glob
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from producer.readers.base import Advance, library
from producer.readers.file import CorpusFile, spooled
from schemas.errors import GleanerError, UsageError

STDIN = "-"
#: How the address of a Postgres database begins.
POSTGRES = ("postgresql://", "postgres://")
#: Begins the names of files beside the data that are none: hidden ones, and Spark's marks.
_ASIDE = (".", "_")
_WILD = "*?["


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a corpus, and what it is called there: its path below the folder that was given, or its name."""

    file: CorpusFile
    name: str


def find_files(sources: Sequence[str], advance: Advance) -> list[Found]:
    """The files of a corpus, in the order given; those of a folder or a glob by name.

    :param advance: told of the bytes of what must be copied here first: URLs, stdin, pipes.
    :raises UsageError: when there is none. :raises GleanerError: when one can't be fetched.
    """
    found: list[Found] = []
    for source in sources:
        if source == STDIN:
            found.append(Found(spooled(sys.stdin.buffer, "stdin", advance), "stdin"))
        elif "://" in source:
            found += _fetched(source, advance)
        else:
            found += _local(source, advance)
    return found


def _local(source: str, advance: Advance) -> list[Found]:
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        if any(mark in source for mark in _WILD):
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
        if path.is_file()
        and not any(part.startswith(_ASIDE) for part in path.relative_to(folder).parts)
        and path.stat().st_size > 0
    ]
    if not found:
        raise UsageError(f"{folder} is a folder without a file: a corpus needs at least one document")
    return found


def _fetched(url: str, advance: Advance) -> list[Found]:
    fsspec = library("fsspec", "fsspec", f"{without_secrets(url)}: a URL")
    shown = without_secrets(url)
    try:
        system, path = fsspec.core.url_to_fs(url)
        if any(mark in path for mark in _WILD) and not url.startswith(("http:", "https:")):
            paths = sorted(system.glob(path))
        elif not url.startswith(("http:", "https:")) and system.isdir(path):
            paths = sorted(name for name in system.find(path) if not Path(name).name.startswith(_ASIDE))
        else:
            paths = [path]
        if not paths:
            raise UsageError(f"no file matches {shown}: check the address of the corpus")
        found = []
        for one in paths:
            uri = shown if len(paths) == 1 else without_secrets(system.unstrip_protocol(one))
            with system.open(one, "rb") as stream:
                found.append(Found(spooled(stream, uri, advance), _name(uri)))
        return found
    except GleanerError:
        raise
    except ImportError as error:
        raise UsageError(f"{shown}: {error}: install it beside gleaner") from None
    except FileNotFoundError:
        raise UsageError(f"no file {shown}: check the address of the corpus") from None
    except ValueError as error:  # a protocol that is none
        raise UsageError(f"{shown}: {error}") from None
    except Exception as error:  # each store has errors of its own
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GleanerError(f"can't fetch {shown}: {cause}") from None


def _name(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] or uri


def without_secrets(url: str) -> str:
    """A URL without user, password and query: signed addresses hold a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
