"""The format of a file: by its content where that is sure, by its name where it is not."""

import io
import json
import zipfile
from pathlib import PurePath

from producer.readers.dialect import Dialect, detect_dialect, table_rows
from producer.readers.encoding import MARK, wide_encoding
from producer.readers.file import CorpusFile
from schemas.errors import UsageError

#: What ``--format`` takes.
FORMATS = ("jsonl", "json", "csv", "parquet", "arrow", "sqlite", "excel", "text")

_HEAD_BYTES = 256 * 1024
_MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"SQLite format 3\x00": "sqlite",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "excel",
}
_ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
    ".rst": "text",
}
#: What is sometimes taken for a corpus, and what to do about it.
_OTHER = {
    b"%PDF": ("PDF", "take its text out first"),
    b"FEA1": ("a Feather file of the first version", "write it anew as Feather or Parquet"),
    b"\x89PNG": ("an image", "a corpus is text"),
    b"\xff\xd8\xff": ("an image", "a corpus is text"),
    b"{\\rtf": ("RTF", "save it as plain text"),
    b"\x80\x04": ("a pickle", "which may run code: write it as JSON Lines or Parquet"),
    b"\x80\x05": ("a pickle", "which may run code: write it as JSON Lines or Parquet"),
}
#: How web pages begin, in small letters.
_PAGE = (b"<!doctype html", b"<html")
#: Lines that are looked at for a JSON object.
_LINES = 20
#: Share of rows with as many cells as most from which on text without a telling name is a table.
_EVEN = 0.9


def detect_format(file: CorpusFile) -> str:
    """One of :data:`FORMATS`, of a file that is not empty.

    :raises UsageError: for content that is none of them.
    """
    head = file.head(_HEAD_BYTES)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head.startswith(b"PK\x03\x04"):
        return _zipped(file)
    for magic, (what, remedy) in _OTHER.items():
        if head.startswith(magic):
            raise UsageError(f"{file.name} is {what}: {remedy}")
    by_name = _ENDINGS.get(PurePath(file.plain_name).suffix.lower())
    if by_name != "text" and head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_PAGE):
        raise UsageError(
            f"{file.name} is a web page: if it is a link to a file, open it and take the file's own address"
        )
    wide = wide_encoding(head)
    if by_name is None and b"\x00" in head and wide is None:
        raise UsageError(f"{file.name} is binary, of no format that is known: {', '.join(FORMATS)}")
    text = head.decode(wide or "utf-8", MARK)  # what other encodings have beyond ASCII tells no format
    whole = len(head) < _HEAD_BYTES
    if by_name == "text":
        return _of_text_file(text, whole, wide is not None)
    return _of_text(text, whole, by_name) or _unknown(file)


def _of_text(text: str, whole: bool, by_name: str | None) -> str | None:
    lines = _first_lines(text)
    # Of one line nobody can say whether more would follow: as a document it is the same record, or a list of them.
    alone = whole and len(lines) == 1 and by_name != "jsonl"
    # A document that is spread over lines may hold whole objects on some of them.
    if not alone and any(_begins_with_object(line) for line in (lines[:1] if by_name == "json" else lines)):
        return "jsonl"
    start = text.lstrip(" \t\r\n")
    if start.startswith("[") or (start.startswith("{") and by_name != "jsonl"):
        # Lines of lists would be rejected one by one, with a better reason than an array that goes on too long.
        return "jsonl" if by_name == "jsonl" and len(lines) > 1 and _is_json(lines[0]) else "json"
    if by_name == "csv":
        return "csv"
    dialect, evenness = detect_dialect(text, whole, None, None)
    rows = text.count("\n") + text.count("\r")
    if evenness >= _EVEN and rows > 1 and dialect.delimiter in text:
        return "csv"
    return by_name


def _of_text_file(text: str, whole: bool, wide: bool) -> str:
    """Prose, unless every line is an object, or the text is a table of cells with tabs between them.

    :param wide: whether it is UTF-16: so Excel writes a table as text, and hardly anybody prose.
    """
    lines = _first_lines(text)
    if len(lines) > 1 and all(_begins_with_object(line) for line in lines):
        return "jsonl"
    tabs = {line.count("\t") for line in lines}
    if len(lines) > 2 and len(tabs) == 1 and tabs != {0}:
        return "csv"
    rows = table_rows(text, Dialect("\t"), whole)
    widths = set(map(len, rows))
    return "csv" if len(rows) > (1 if wide else 2) and len(widths) == 1 and widths != {1} else "text"


def _first_lines(text: str) -> list[str]:
    return [line for line in io.StringIO(text) if line.strip()][:_LINES]


def _begins_with_object(line: str) -> bool:
    start = line.lstrip("\ufeff \t")
    if not start.startswith("{"):
        return False
    try:
        end = json.JSONDecoder(strict=False).raw_decode(start)[1]
    except (ValueError, RecursionError):
        return False
    return not start.startswith(",", end)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _zipped(file: CorpusFile) -> str:
    with file.on_disk() as path:
        try:
            names = zipfile.ZipFile(path).namelist()
        except zipfile.BadZipFile:
            raise UsageError(f"{file.name} is a damaged zip archive: make it again or copy it again") from None
    if any(name.startswith("xl/") for name in names) or "content.xml" in names:
        return "excel"
    if any(name.startswith("word/") for name in names):
        raise UsageError(f"{file.name} is a Word document: save it as plain text")
    raise UsageError(f"{file.name} is a zip archive: unpack it and give the folder")


def _unknown(file: CorpusFile) -> str:
    raise UsageError(
        f"{file.name}: neither its content nor its name says what it is: give --format ({', '.join(FORMATS)})"
    )
