"""Checks that the named fields exist, before anything is written."""

import difflib
from collections.abc import Iterable
from itertools import islice

from producer.readers import Reader
from producer.records import FieldMapping
from schemas.errors import UsageError

#: Records looked at: a field that none of so many has is a typing error. Read in well under a second.
PROBE_RECORDS = 1000
#: Field names shown in an error: more would not fit a line.
SHOWN_FIELDS = 20


def check_fields(reader: Reader, mapping: FieldMapping, template_fields: Iterable[str]) -> None:
    """Check that the first records have the fields that were named.

    :param template_fields: names in the prompt template; ``text`` and ``id`` stand for the mapped fields.
    :raises UsageError: names the field, the fields seen and the likely one. Not where no record could be read at all:
        loading says why each was rejected.
    """
    if mapping.id_field == mapping.text_field:
        raise UsageError(f"--id-field and --text-field both name {mapping.id_field!r}: they must differ")
    seen: dict[str, None] = {}
    for record in islice(reader.records(lambda _: None), PROBE_RECORDS):
        if isinstance(record.content, dict):
            seen.update(dict.fromkeys(record.content))
    if not seen:
        return
    _require(mapping.id_field, "--id-field", seen)
    _require(mapping.text_field, "--text-field", seen)
    # The id and the text are not part of the metadata: the template has names of its own for them.
    meta = {name: None for name in seen if name not in (mapping.id_field, mapping.text_field)}
    for name in template_fields:
        if name not in ("text", "id"):
            _require(name, "the template", meta)


def _require(field: str, where: str, seen: dict[str, None]) -> None:
    if field in seen:
        return
    near = difflib.get_close_matches(field, seen, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(repr(name) for name in islice(seen, SHOWN_FIELDS)) + (", ..." if len(seen) > SHOWN_FIELDS else "")
    raise UsageError(f"{where}: no record has a field {field!r}.{hint} The records have {shown or 'no other field'}.")
