"""A field name that no record has is refused by name, before anything is written."""

import json
from pathlib import Path

import pytest

from producer.fields import PROBE_RECORDS, choose_fields
from producer.readers.file import CorpusFile
from producer.readers.jsonl import JsonlReader
from producer.records import FieldMapping
from schemas.errors import UsageError


def choose(
    tmp_path: Path, records: list, id_field: str | None = None, text: tuple = (), template: tuple = ()
) -> tuple[FieldMapping, tuple[str, ...]]:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return choose_fields(JsonlReader(CorpusFile(str(path)), 10_000), id_field, text, None, template)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"id_field": "idd"}, "--id-field: no record has a field 'idd'. Did you mean 'id'?"),
        ({"text": ("abstrct",)}, "--text-field: no record has a field 'abstrct'. Did you mean 'abstract'?"),
        ({"text": ("body",)}, "no record has a field 'body'. The records have 'id', 'text', 'abstract', 'title'."),
        ({"text": ("text", "body")}, "no record has a field 'body'."),
        ({"template": ("text", "titel")}, "the template: no record has a field 'titel'. Did you mean 'title'?"),
        ({"text": ("abstract",), "template": ("abstract",)}, "the template: no record has a field 'abstract'"),
        ({"id_field": "text", "text": ("text",)}, "both name 'text'"),
    ],
)
def test_a_field_that_no_record_has_is_named(tmp_path: Path, kwargs: dict, words: str) -> None:
    records = [{"id": 1, "text": "t", "abstract": "a"}, {"title": "only the second has one"}]
    with pytest.raises(UsageError) as caught:
        choose(tmp_path, records, **kwargs)
    assert words in str(caught.value)


def test_fields_that_some_record_has_pass(tmp_path: Path) -> None:
    records = [{"id": 1}, "not an object", {"text": "t"}, {"title": "t"}]
    choose(tmp_path, records, template=("text", "id", "title"))


def test_only_the_first_records_are_looked_at(tmp_path: Path) -> None:
    late = {"id": 1, "text": "t"}
    choose(tmp_path, [{"id": 1}] * (PROBE_RECORDS - 1) + [late], text=("text",))
    with pytest.raises(UsageError):
        choose(tmp_path, [{"id": 1}] * PROBE_RECORDS + [late], text=("text",))


def test_a_file_without_objects_is_left_to_loading_to_explain(tmp_path: Path) -> None:
    assert choose(tmp_path, [1, 2, 3])[0].text_field == "text"


@pytest.mark.parametrize(
    ("record", "id_field", "text_field"),
    [
        ({"id": "{n}", "text": "t"}, "id", "text"),
        ({"ID": "{n}", "Abstract": "a", "title": "t"}, "ID", "Abstract"),
        ({"arxiv_id": "{n}", "summary": "s", "title": "t"}, "arxiv_id", "summary"),
        ({"only": "words"}, None, "only"),
        ({"kind": "a", "notes": "several words that go on"}, None, "notes"),
        ({"id": "same", "text": "t"}, None, "text"),  # ids that are not one a record are none
    ],
)
def test_obvious_fields_are_guessed(tmp_path: Path, record: dict, id_field: str | None, text_field: str) -> None:
    records = [{name: value.replace("{n}", str(n)) for name, value in record.items()} for n in range(20)]
    mapping, notes = choose(tmp_path, records)
    assert mapping == FieldMapping(id_field, text_field)
    assert f"text field: {text_field!r}" in notes
    assert any(note.startswith("id field: ") for note in notes)


def test_a_text_that_is_not_obvious_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        choose(tmp_path, [{"left": "words", "right": "words"}])
    assert "name it with --text-field. The records have 'left', 'right'." in str(caught.value)


@pytest.mark.parametrize(
    ("template", "where", "words"),
    [
        ("{boddy}", (), "--text: no record has a field 'boddy'. Did you mean 'body'?"),
        ("{id}", (), "--id-field and --text both name 'id'"),
        ("{body}", ("yaer",), "--where: no record has a field 'yaer'. Did you mean 'year'?"),
    ],
)
def test_the_option_that_names_it_is_said(tmp_path: Path, template: str, where: tuple, words: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "body": "b", "year": 2020}\n')
    reader = JsonlReader(CorpusFile(str(path)), 10_000)
    with pytest.raises(UsageError) as caught:
        choose_fields(reader, "id", (), template, where=where)
    assert words in str(caught.value)
    choose_fields(reader, "id", (), "{body}", where=("year", "id", "body"))
