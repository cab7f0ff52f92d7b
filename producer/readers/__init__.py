"""Readers of corpora: one module a format, behind :class:`Reader`."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from producer.progress import Progress, silent
from producer.readers.base import Advance, Reader, ReadOptions, Record
from producer.readers.detect import FORMATS, detect_format
from producer.readers.empty import EmptyFileReader
from producer.readers.encoding import MARK_BYTES, check_marked, known
from producer.readers.file import CorpusFile
from producer.readers.many import ManyReader
from producer.readers.sources import POSTGRES, Found, find_files, without_secrets
from schemas.errors import UsageError
from schemas.settings import Settings

__all__ = ["FORMATS", "Advance", "ReadOptions", "Reader", "Record", "open_reader"]

_DEFAULTS = ReadOptions()


def open_reader(
    sources: str | Sequence[str],
    settings: Settings,
    options: ReadOptions = _DEFAULTS,
    progress: Progress = silent,
) -> Reader:
    """The reader of a corpus.

    :param sources: paths of files, folders or globs, URLs, ``-`` for stdin, or one Postgres URL.
    :param progress: told of what must be copied here before it can be read twice.
    :raises UsageError: for what is missing, empty, unreadable or of no known format, and for files of several formats.
    :raises GleanerError: when something can't be fetched.
    """
    given = [sources] if isinstance(sources, str) else list(sources)
    if options.encoding is not None and not known(options.encoding):
        raise UsageError(f"--encoding {options.encoding!r} is no encoding: utf-8, cp1252, utf-16 and the like")
    if options.format is not None and options.format not in FORMATS:
        raise UsageError(f"--format {options.format!r} is none of {', '.join(FORMATS)}")
    database = [source for source in given if source.startswith(POSTGRES)]
    if database:
        from producer.readers.postgres import PostgresReader  # noqa: PLC0415

        if len(given) > 1:
            raise UsageError("a Postgres query is a corpus by itself: give nothing beside it")
        return PostgresReader(given[0], options)
    found = _files(given, settings, progress)
    filled = [one for one in found if one.file.head(1)]
    if not filled:
        which = f"{found[0].file.name} is" if len(found) == 1 else f"all {len(found):,} files are"
        raise UsageError(f"{which} empty: a corpus needs at least one document")
    if options.encoding is not None:
        for one in filled:
            check_marked(options.encoding, one.file.head(MARK_BYTES), one.file.name)
    formats = _formats(filled, options, given)
    uri = ", ".join(without_secrets(source) if "://" in source else str(Path(source).absolute()) for source in given)
    kind = formats[0]
    if kind == "text":
        from producer.readers.text import TextFilesReader  # noqa: PLC0415

        return TextFilesReader(
            [one.file for one in found], [one.name for one in found], uri, settings.record_max_bytes, options.encoding
        )
    read = {id(one): _reader(one.file, kind, settings, options) for one in filled}
    like = read[id(filled[0])]
    readers = [read.get(id(one)) or EmptyFileReader(one.file, like) for one in found]
    return like if len(readers) == 1 else ManyReader(readers, [one.name for one in found], uri)


def _files(given: Sequence[str], settings: Settings, progress: Progress) -> list[Found]:
    # One that can't be read is refused with the others, by name.
    if len(given) == 1 and os.path.isdir(given[0]) and os.access(given[0], os.R_OK | os.X_OK):
        from producer.readers.arrow import saved_data_set  # noqa: PLC0415

        parts = saved_data_set(Path(given[0]))
        if parts is not None:
            return [Found(CorpusFile(str(path)), path.name) for path in parts]
    return find_files(given, settings.fetch_timeout_s, lambda done: progress("fetching", done, 0))


def _reader(file: CorpusFile, kind: str, settings: Settings, options: ReadOptions) -> Reader:
    # Imported where they are used: a corpus of JSON Lines needs none of the others' libraries.
    limit = settings.record_max_bytes
    match kind:
        case "jsonl":
            from producer.readers.jsonl import JsonlReader  # noqa: PLC0415

            return JsonlReader(file, limit, options.encoding)
        case "json":
            from producer.readers.json_document import JsonDocumentReader  # noqa: PLC0415

            return JsonDocumentReader(file, limit, options.encoding)
        case "csv":
            from producer.readers.delimited import DelimitedReader  # noqa: PLC0415

            return DelimitedReader(file, limit, options)
        case "parquet":
            from producer.readers.arrow import ParquetReader  # noqa: PLC0415

            return ParquetReader(file, limit)
        case "arrow":
            from producer.readers.arrow import ArrowReader  # noqa: PLC0415

            return ArrowReader(file, limit)
        case "sqlite":
            from producer.readers.sqlite import SqliteReader  # noqa: PLC0415

            return SqliteReader(file, limit, options)
    from producer.readers.workbook import WorkbookReader  # noqa: PLC0415

    return WorkbookReader(file, options)


def _formats(found: Sequence[Found], options: ReadOptions, given: Sequence[str]) -> list[str]:
    """The format of each file: one for all of them."""
    formats = []
    for one in found:
        try:
            formats.append(options.format or detect_format(one.file))
        except UsageError as error:
            if len(found) == 1:
                raise
            others = [other.name for other in found if other is not one]
            raise UsageError(f"{error}. For the others alone give {_pattern(others, given)}") from None
    first = {kind: one.name for kind, one in zip(reversed(formats), reversed(found), strict=True)}
    if len(first) > 1:
        listed = ", ".join(f"{kind} ({name})" for kind, name in sorted(first.items()))
        names = [one.name for one in found]
        raise UsageError(
            f"the files are of several formats: {listed}. Give those of one format, as in {_pattern(names, given)}"
        )
    return formats


def _pattern(names: Sequence[str], given: Sequence[str]) -> str:
    """A glob of the files with the ending that most have."""
    ending = Counter(PurePath(name).suffix for name in names).most_common(1)[0][0]
    folder = given[0].rstrip("/") if len(given) == 1 and os.path.isdir(given[0]) else "folder"
    deep = "**/" if any(len(PurePath(name).parts) > 1 for name in names) and folder != "folder" else ""
    return f"'{folder}/{deep}*{ending}'"
