"""One input record to a document, or to the reason why it can't be one."""

import json
import re
import string
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from schemas.errors import UsageError
from schemas.jsontext import any_string, dump_json, make_storable, map_strings
from schemas.outcomes import DocumentFlag, RejectCode
from schemas.printable import counted

#: Characters of a rejected record that are kept: enough to recognise it.
EXCERPT_CHARS = 200
#: Bytes an id may have. An entry of a Postgres index holds 2,704, and one that did not fit would fail the whole load.
ID_MAX_BYTES = 1024
#: How an id begins that was made from a record's content, and the hex digits of the digest in it: among a thousand
#: million records two alike are less likely than one in 10^10.
MADE_ID = "content-"
MADE_ID_DIGITS = 24
#: What pydantic's serializer takes for the name of every field.
_EVERY_FIELD = "__all__"
#: Between texts that were named one by one.
FIELD_SEPARATOR = "\n\n"

_SURROGATE = re.compile("[\ud800-\udfff]")
_C1 = re.compile("[\x80-\x9f]")
#: What is changed in a document.
_CHANGED = re.compile("[\x00\x80-\x9f\ud800-\udfff]")
#: Text in Windows-1252 that was read as Latin-1 has these in place of quotes, dashes and the euro.
_C1_MEANT = {n: bytes([n]).decode("cp1252", "replace") for n in range(0x80, 0xA0)}
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", float: "a number", int: "a number"}


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Which fields of a record are the document's id and its text.

    Fields that are neither are the document's metadata. A text that is made of several fields leaves them in the
    metadata too: they could not be told apart in it.

    :param id_field: None: every id is made from the record's content.
    :param text_field: the one field that is the text; empty where ``parts`` make it.
    :param parts: literal text, and the field that follows it (None at the end).
    :raises UsageError: for a field that the serializer of metadata can't leave out.
    """

    id_field: str | None
    text_field: str
    parts: tuple[tuple[str, str | None], ...] = ()
    not_meta: set[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {self.id_field, None if self.parts else self.text_field} - {None}
        if _EVERY_FIELD in names:
            raise UsageError(f"a field that is called {_EVERY_FIELD!r} can be neither the id nor the text: rename it")
        object.__setattr__(self, "not_meta", names)

    @classmethod
    def of_fields(cls, id_field: str | None, text_fields: list[str]) -> "FieldMapping":
        """A text that is one field, or several with a blank line between them."""
        if len(text_fields) == 1:
            return cls(id_field, text_fields[0])
        return cls(id_field, "", tuple((FIELD_SEPARATOR if n else "", name) for n, name in enumerate(text_fields)))

    @classmethod
    def of_template(cls, id_field: str | None, template: str) -> "FieldMapping":
        """A text made by a template as ``{title}: {abstract}``.

        :raises UsageError: for a broken brace, or no field.
        """
        parts: list[tuple[str, str | None]] = []
        try:
            for literal, name, spec, conversion in string.Formatter().parse(template):
                if name is not None and (not name or spec or conversion):
                    raise UsageError(f"--text: {{{name}}} must be the plain name of a field, as in {{title}}")
                parts.append((literal, name))
        except ValueError as error:
            raise UsageError(f"--text is broken: {error}. Write {{{{ or }}}} for a brace.") from None
        names = [name for _, name in parts if name is not None]
        if not names:
            raise UsageError("--text names no field: write each in braces, as in {title}")
        if len(names) == 1 and len(parts) == 1 and not parts[0][0]:
            return cls(id_field, names[0])
        return cls(id_field, "", tuple(parts))

    @property
    def text_fields(self) -> list[str]:
        """The fields that the text is made of."""
        return [self.text_field] if not self.parts else [name for _, name in self.parts if name is not None]

    def as_json(self) -> dict[str, Any]:
        """For the table of corpora, and for the fingerprint."""
        return {"id": self.id_field, "text": list(map(list, self.parts)) if self.parts else self.text_field}

    def is_meta(self, name: str) -> bool:
        """Whether a field is part of the metadata."""
        return name not in self.not_meta

    def meta(self, record: dict[str, Any]) -> dict[str, Any]:
        """The metadata of a record."""
        return {name: value for name, value in record.items() if name not in self.not_meta}


class Document(NamedTuple):
    """A document as Postgres can store it. ``content_hash``: SHA-256 of the text as it was given.

    ``original``: the whole record, as ASCII JSON, where a character of it was changed.
    """

    external_id: str
    text: str
    meta: str
    content_hash: bytes
    flags: tuple[DocumentFlag, ...]
    original: str | None = None


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
    text = _text(record, mapping, max_chars)
    if isinstance(text, Reject):
        return text
    external_id = _id(record, mapping)
    if isinstance(external_id, Reject):
        return external_id
    flags: tuple[DocumentFlag, ...] = ()
    if not external_id:
        external_id = made_id(record)
        # Where no field holds ids, the corpus says so once.
        flags = () if mapping.id_field is None else (DocumentFlag.ID_MADE,)
    # Hashed before anything is replaced; a lone surrogate has no UTF-8, so it is hashed as it would be encoded.
    content_hash = sha256(text.encode("utf-8", "surrogatepass")).digest()
    dumped = _dumped(record, mapping)
    # Nearly every record is as it may stay. A NUL is escaped in the dump, the others are as they are.
    if not (_may_stay(text) and _may_stay(external_id) and "\\u0000" not in dumped and _may_stay(dumped)):
        meta = mapping.meta(record)
        changed = _changes([external_id, text, meta])
        if changed:
            original = json.dumps(record, separators=(",", ":"))
            kept = dump_json(map_strings(meta, _changed))
            return Document(_changed(external_id), _changed(text), kept, content_hash, (*changed, *flags), original)
    return Document(external_id, text, dumped, content_hash, flags)


def _dumped(record: dict[str, Any], mapping: FieldMapping) -> str:
    """A record's metadata as JSON."""
    try:
        # Four times as quick as the standard library.
        return to_json(record, exclude=mapping.not_meta, inf_nan_mode="null").decode()
    except PydanticSerializationError:  # a lone surrogate, which is about to be replaced
        return dump_json(mapping.meta(record))


def made_id(record: dict[str, Any]) -> str:
    """The id of a record that has none: the same for the same content, whatever the order of its fields."""
    content = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return MADE_ID + sha256(content.encode()).hexdigest()[:MADE_ID_DIGITS]


def _id(record: dict[str, Any], mapping: FieldMapping) -> str | Reject:
    """The id as text; empty when there is none."""
    value: Any = None if mapping.id_field is None else record.get(mapping.id_field)
    if value is None:
        return ""
    if not isinstance(value, str):
        value = dump_json(value)
    elif not value or value.isspace():
        return ""
    external_id = str(value)
    if len(value) * 4 > ID_MAX_BYTES and len(value.encode("utf-8", "surrogatepass")) > ID_MAX_BYTES:
        reason = f"the id in {mapping.id_field!r} has over {ID_MAX_BYTES:,} bytes"
        return Reject.of(RejectCode.TOO_LARGE, reason, dump_json(record))
    return external_id


def _text(record: dict[str, Any], mapping: FieldMapping, max_chars: int) -> str | Reject:
    text = _joined(record, mapping) if mapping.parts else record.get(mapping.text_field)
    if not isinstance(text, str):
        return text if isinstance(text, Reject) else _no_text(record, mapping.text_field)
    if len(text) > max_chars:
        reason = f"the text has {counted(len(text), 'character')}, over {max_chars:,} (GLEANER_DOCUMENT_MAX_CHARS)"
        return Reject.of(RejectCode.TOO_LARGE, reason, dump_json(record))
    if not text or text.isspace():
        return Reject.of(RejectCode.EMPTY, "the text is nothing but white space", dump_json(record))
    return text


def _no_text(record: dict[str, Any], name: str) -> Reject:
    """Why a field is no text."""
    value = record.get(name)
    if value is None:
        reason = f"the text in {name!r} is null" if name in record else f"no field {name!r}"
        return Reject.of(RejectCode.MISSING_TEXT, reason, dump_json(record))
    return Reject.of(RejectCode.TEXT_NOT_STRING, f"the text in {name!r} is {kind(value)}", dump_json(record))


def _joined(record: dict[str, Any], mapping: FieldMapping) -> str | Reject:
    """The text made of several fields. One that is missing leaves nothing; all missing is no document."""
    made: list[str] = []
    found = False
    for literal, name in mapping.parts:
        value = None if name is None else record.get(name)
        if isinstance(value, dict | list):
            return Reject.of(RejectCode.TEXT_NOT_STRING, f"{name!r} is {kind(value)}", dump_json(record))
        made.append(literal)
        if value is not None and value != "":
            found = True
            made.append(value if isinstance(value, str) else dump_json(value))
    if not found:
        return Reject.of(RejectCode.MISSING_TEXT, f"no field of {', '.join(mapping.text_fields)}", dump_json(record))
    return "".join(made).strip()


def _may_stay(text: str) -> bool:
    # ASCII holds none of them but NUL, and a string knows whether it is ASCII.
    return "\x00" not in text if text.isascii() else _CHANGED.search(text) is None


def _changed(text: str) -> str:
    # One for one, so that offsets stay.
    return make_storable(text.translate(_C1_MEANT))


def _changes(parts: list[Any]) -> tuple[DocumentFlag, ...]:
    found = []
    if any_string(parts, lambda item: "\x00" in item):
        found.append(DocumentFlag.NUL_REPLACED)
    if any_string(parts, lambda item: _SURROGATE.search(item) is not None):
        found.append(DocumentFlag.SURROGATE_REPLACED)
    if any_string(parts, lambda item: _C1.search(item) is not None):
        found.append(DocumentFlag.C1_REPLACED)
    return tuple(found)
