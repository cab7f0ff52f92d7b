"""Which fields of a corpus are the id and the text: as named, or guessed where that is obvious."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

from producer.readers import Reader
from producer.records import FieldMapping
from schemas.errors import UsageError

#: Records looked at: a field that none of so many has is a typing error. Read in well under a second.
PROBE_RECORDS = 1000
#: Field names shown in an error: more would not fit a line.
SHOWN_FIELDS = 20
#: Names that a document's id and its text commonly have, the likeliest first. Case does not count.
ID_NAMES = (
    *("id", "_id", "doc_id", "docid", "document_id", "uuid", "guid", "uid", "key", "identifier"),
    *("pmid", "doi", "arxiv_id", "paper_id", "record_id", "path"),
)
TEXT_NAMES = (
    *("text", "abstract", "body", "content", "document", "summary", "description", "message", "review"),
    *("article", "comment", "question", "sentence", "passage", "abstracts", "summaries"),
)
#: A field is taken for the text without such a name, if its strings are so many times as long as those of the next.
LONGER = 3


@dataclass
class FieldProbe:
    """What the first records of a corpus hold, field by field."""

    records: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, reader: Reader) -> "FieldProbe":
        """Look at a corpus's first records."""
        probe = cls()
        for record in islice(reader.records(lambda _: None), PROBE_RECORDS):
            if isinstance(record.content, dict):
                probe.records += 1
                for name, value in record.content.items():
                    if value is not None and value != "":
                        probe.values.setdefault(name, []).append(value)
                    else:
                        probe.values.setdefault(name, [])
        return probe

    def id_field(self) -> str | None:
        """A field named as ids are, with a value of its own in each record that has one, as most have."""
        for name in self._named(ID_NAMES):
            values = self.values[name]
            single = all(isinstance(value, str | int) for value in values)
            if single and 2 * len(values) >= self.records and 100 * len(set(map(str, values))) >= 90 * len(values):
                return name
        return None

    def text_field(self, id_field: str | None) -> str | None:
        """A field named as texts are; else the only one that holds strings; else the one with far longer strings."""
        lengths = {
            name: median(map(len, strings))
            for name, values in self.values.items()
            if name != id_field and (strings := [value for value in values if isinstance(value, str)])
        }
        for name in self._named(TEXT_NAMES):
            if name in lengths:
                return name
        ordered = sorted(lengths, key=lambda name: -lengths[name])
        if len(ordered) == 1 or (len(ordered) > 1 and lengths[ordered[0]] >= LONGER * lengths[ordered[1]]):
            return ordered[0]
        return None

    def _named(self, names: Sequence[str]) -> list[str]:
        by_name = {name.lower(): name for name in reversed(self.values)}
        return [by_name[name] for name in names if name in by_name]


def choose_fields(
    reader: Reader,
    id_field: str | None,
    text_fields: Sequence[str],
    text_template: str | None,
    prompt_fields: Iterable[str] = (),
    group_by: Iterable[str] = (),
    where: Iterable[str] = (),
) -> tuple[FieldMapping, tuple[str, ...]]:
    """The field mapping of a corpus, and what was guessed of it, in words.

    :param text_template: how the text is made of several fields. :param prompt_fields: names in the prompt template.
    :param group_by: fields that documents are grouped by. :param where: fields that conditions compare.
    :raises UsageError: for a field that no record has, and where no text is obvious; names the fields seen and the
        likely one. Not where no record could be read at all: loading says why each was rejected.
    """
    probe = FieldProbe.of(reader)
    notes: list[str] = []
    if id_field is None and probe.values:
        id_field = probe.id_field()
        notes.append(f"id field: {id_field!r}" if id_field else "id field: none, ids are made from the content")
    if text_template is not None:
        mapping = FieldMapping.of_template(id_field, text_template)
    elif text_fields:
        mapping = FieldMapping.of_fields(id_field, list(text_fields))
    elif not probe.values:
        mapping = FieldMapping(id_field or ID_NAMES[0], TEXT_NAMES[0])
    else:
        guess = probe.text_field(id_field)
        if guess is None:
            raise UsageError(
                f"which field holds the text is not obvious: name it with --text-field. {_has(probe.values)}"
            )
        notes.append(f"text field: {guess!r}")
        mapping = FieldMapping(id_field, guess)
    text_option = "--text-field" if text_template is None else "--text"
    _check(mapping, probe.values, text_option, prompt_fields, group_by)
    if probe.values:
        for name in where:
            _require(name, "--where", probe.values)
    return mapping, tuple(notes)


def _check(
    mapping: FieldMapping,
    seen: dict[str, Any],
    text_option: str,
    prompt_fields: Iterable[str],
    group_by: Iterable[str],
) -> None:
    if mapping.id_field is not None and mapping.id_field == mapping.text_field:
        raise UsageError(f"--id-field and {text_option} both name {mapping.id_field!r}: they must differ")
    if not seen:
        return
    if mapping.id_field is not None:
        _require(mapping.id_field, "--id-field", seen)
    for name in mapping.text_fields:
        _require(name, text_option, seen)
    # The id and the text are not part of the metadata: the prompt template has names of its own for them.
    meta = [name for name in seen if mapping.is_meta(name)]
    for name in prompt_fields:
        if name not in ("text", "id"):
            _require(name, "the template", meta)
    for name in group_by:
        _require(name, "--group-by", meta)


def _require(name: str, where: str, seen: Iterable[str]) -> None:
    if name in seen:
        return
    near = difflib.get_close_matches(name, seen, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"{where}: no record has a field {name!r}.{hint} {_has(seen)}")


def _has(seen: Iterable[str]) -> str:
    names = list(seen)
    shown = ", ".join(map(repr, names[:SHOWN_FIELDS])) + (", ..." if len(names) > SHOWN_FIELDS else "")
    return f"The records have {shown or 'no other field'}."
