"""The first documents of a JSONL file, to measure with. What is no document is left out: the producer says why."""

import gzip
from pathlib import Path
from typing import Any

from schemas.errors import UsageError
from schemas.jsontext import parse_json


def read_sample(path: Path, documents: int, text_field: str, id_field: str) -> list[dict[str, Any]]:
    """Up to so many documents of a file, plain or gzip, as the worker gets them from the database.

    :raises UsageError: when the file can't be read or holds none.
    """
    found: list[dict[str, Any]] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                document = _document(line, text_field, id_field)
                if document is not None:
                    found.append({"ordinal": len(found), **document})
                if len(found) == documents:
                    break
    except (OSError, EOFError) as error:
        raise UsageError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise UsageError(f"{path} holds no document with text in {text_field!r}: name the field with --text-field")
    return found


def _document(line: bytes, text_field: str, id_field: str) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        return None
    meta = {name: value for name, value in record.items() if name not in (text_field, id_field)}
    return {"external_id": str(record.get(id_field, "")), "text": text, "meta": meta}
