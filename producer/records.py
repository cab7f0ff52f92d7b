"""One input record to a document, or to the reason why it can't be one."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from schemas.jsontext import any_string, dump_json, make_storable, map_strings, storable
from schemas.outcomes import DocumentFlag, RejectCode

#: Characters of a rejected record that are kept: enough to recognise it.
EXCERPT_CHARS = 200
#: Bytes an id may have. An entry of a Postgres index holds 2,704, and one that did not fit would fail the whole load.
ID_MAX_BYTES = 1024

_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", float: "a number", int: "a number"}


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Which fields of a record are the document's id and its text; the others are its metadata."""

    id_field: str
    text_field: str


@dataclass(frozen=True, slots=True)
class Document:
    """A document as Postgres can store it. ``content_hash``: SHA-256 of the text as it was given."""

    external_id: str
    text: str
    meta: str
    content_hash: bytes
    flags: tuple[DocumentFlag, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a record is no document: a code to count by, a reason in words, and the record's beginning."""

    code: RejectCode
    reason: str
    excerpt: str

    @classmethod
    def of(cls, code: RejectCode, reason: str, record: str) -> "Reject":
        """Make a reject that Postgres can store, whatever the record holds."""
        return cls(code, make_storable(reason), make_storable(record[:EXCERPT_CHARS]))


def kind(value: Any) -> str:
    """A JSON value's type in words: ``an array``."""
    return "null" if value is None else _KINDS[type(value)]


def read_record(record: dict[str, Any], mapping: FieldMapping, max_chars: int) -> Document | Reject:
    """Check one record and make it storable.

    :param record: a JSON object as :func:`schemas.jsontext.parse_json` returns it: finite numbers, bounded nesting.
    :param max_chars: characters a document's text may have.
    """
    fault = _id_fault(record, mapping.id_field) or _text_fault(record, mapping.text_field, max_chars)
    if fault is not None:
        return Reject.of(*fault, dump_json(record))
    external_id = str(record[mapping.id_field])
    text: str = record[mapping.text_field]
    # Hashed before anything is replaced; a lone surrogate has no UTF-8, so it is hashed as it would be encoded.
    content_hash = sha256(text.encode("utf-8", "surrogatepass")).digest()
    meta = {name: value for name, value in record.items() if name not in (mapping.id_field, mapping.text_field)}
    flags: tuple[DocumentFlag, ...] = ()
    if any_string([external_id, text, meta], lambda item: not storable(item)):
        flags = _flags([external_id, text, meta])
        external_id, text = make_storable(external_id), make_storable(text)
        meta = map_strings(meta, make_storable)
    return Document(external_id, text, dump_json(meta), content_hash, flags)


def _id_fault(record: dict[str, Any], field: str) -> tuple[RejectCode, str] | None:
    if field not in record:
        return RejectCode.MISSING_ID, f"no field {field!r}"
    value = record[field]
    if isinstance(value, bool) or not isinstance(value, str | int):
        return RejectCode.MISSING_ID, f"the id in {field!r} is {kind(value)}: it must be a string or a whole number"
    if not str(value).strip():
        return RejectCode.MISSING_ID, f"the id in {field!r} is empty"
    if len(str(value).encode("utf-8", "surrogatepass")) > ID_MAX_BYTES:
        return RejectCode.TOO_LARGE, f"the id in {field!r} has over {ID_MAX_BYTES} bytes"
    return None


def _text_fault(record: dict[str, Any], field: str, max_chars: int) -> tuple[RejectCode, str] | None:
    if field not in record:
        return RejectCode.MISSING_TEXT, f"no field {field!r}"
    value = record[field]
    if not isinstance(value, str):
        return RejectCode.TEXT_NOT_STRING, f"the text in {field!r} is {kind(value)}"
    if len(value) > max_chars:
        return (
            RejectCode.TOO_LARGE,
            f"the text has {len(value)} characters, over {max_chars} (GLEANER_DOCUMENT_MAX_CHARS)",
        )
    return None


def _flags(parts: list[Any]) -> tuple[DocumentFlag, ...]:
    found = []
    if any_string(parts, lambda item: "\x00" in item):
        found.append(DocumentFlag.NUL_REPLACED)
    if any_string(parts, lambda item: _SURROGATE.search(item) is not None):
        found.append(DocumentFlag.SURROGATE_REPLACED)
    return tuple(found)
