"""A field name that no record has is refused by name, before anything is written."""

import json
from pathlib import Path

import pytest

from producer.fields import PROBE_RECORDS, check_fields
from producer.readers.jsonl import JsonlReader
from producer.records import FieldMapping
from schemas.errors import UsageError


def check(tmp_path: Path, records: list, id_field: str = "id", text_field: str = "text", template: tuple = ()) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    check_fields(JsonlReader(str(path), 10_000), FieldMapping(id_field, text_field), template)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"id_field": "idd"}, "--id-field: no record has a field 'idd'. Did you mean 'id'?"),
        ({"text_field": "abstrct"}, "--text-field: no record has a field 'abstrct'. Did you mean 'abstract'?"),
        ({"text_field": "body"}, "no record has a field 'body'. The records have 'id', 'text', 'abstract', 'title'."),
        ({"template": ("text", "titel")}, "the template: no record has a field 'titel'. Did you mean 'title'?"),
        ({"text_field": "abstract", "template": ("abstract",)}, "the template: no record has a field 'abstract'"),
        ({"id_field": "text"}, "both name 'text'"),
    ],
)
def test_a_field_that_no_record_has_is_named(tmp_path: Path, kwargs: dict, words: str) -> None:
    records = [{"id": 1, "text": "t", "abstract": "a"}, {"title": "only the second has one"}]
    with pytest.raises(UsageError) as caught:
        check(tmp_path, records, **kwargs)
    assert words in str(caught.value)


def test_fields_that_some_record_has_pass(tmp_path: Path) -> None:
    records = [{"id": 1}, "not an object", {"text": "t"}, {"title": "t"}]
    check(tmp_path, records, template=("text", "id", "title"))


def test_only_the_first_records_are_looked_at(tmp_path: Path) -> None:
    late = {"id": 1, "text": "t"}
    check(tmp_path, [{"id": 1}] * (PROBE_RECORDS - 1) + [late])
    with pytest.raises(UsageError):
        check(tmp_path, [{"id": 1}] * PROBE_RECORDS + [late])


def test_a_file_without_objects_is_left_to_loading_to_explain(tmp_path: Path) -> None:
    check(tmp_path, [1, 2, 3])
