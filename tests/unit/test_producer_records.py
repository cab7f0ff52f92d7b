"""Records become documents that Postgres can store, or rejects with a reason in words."""

import json
import re
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from producer.records import EXCERPT_CHARS, ID_MAX_BYTES, MADE_ID, Document, FieldMapping, Reject, read_record
from schemas.errors import UsageError
from schemas.jsontext import any_string, dump_json, storable
from schemas.outcomes import DocumentFlag, RejectCode

MAPPING = FieldMapping("id", "text")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
#: Any characters, lone surrogates too, as JSON escapes can bring them.
WILD_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)


def document(record: dict, max_chars: int = 100) -> Document:
    made = read_record(record, MAPPING, max_chars)
    assert isinstance(made, Document), made
    return made


def reject(record: dict, max_chars: int = 100) -> Reject:
    made = read_record(record, MAPPING, max_chars)
    assert isinstance(made, Reject), made
    return made


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        ({"a\x00": 1, "a\ufffd": 2}, {"a\ufffd\ufffd": 1, "a\ufffd": 2}),
        ({"a\ud800": 1, "a\x00": 2}, {"a\ufffd": 1, "a\ufffd\ufffd": 2}),
        ({"\x80": 1, "€": 2}, {"€\ufffd": 1, "€": 2}),
        ({"m": [{"\x00": 1, "\ufffd": 2}]}, {"m": [{"\ufffd\ufffd": 1, "\ufffd": 2}]}),
    ],
)
def test_fields_whose_names_become_the_same_all_stay(meta: dict, kept: dict) -> None:
    record = {"id": "a", "text": "t", **meta}
    made = document(record)
    assert json.loads(made.meta) == kept
    assert json.loads(made.original or "") == record


def test_a_document_keeps_text_and_every_other_field() -> None:
    made = document({"id": "a", "text": " Hello\n", "year": 2001, "nested": {"x": [1, None, 0.5]}})
    assert made.text == " Hello\n"
    assert json.loads(made.meta) == {"year": 2001, "nested": {"x": [1, None, 0.5]}}
    assert made.content_hash == sha256(b" Hello\n").digest()
    assert made.flags == ()


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [
        ("a", "a"),
        (7, "7"),
        (-1, "-1"),
        (10**30, str(10**30)),
        (" b ", " b "),
        (True, "true"),
        (1.5, "1.5"),
        ([1, "é"], '[1,"é"]'),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_ids_of_any_type_are_kept_as_text(given_id: object, kept: str) -> None:
    made = document({"id": given_id, "text": "t"})
    assert (made.external_id, made.flags) == (kept, ())


@pytest.mark.parametrize("record", [{"text": "t"}, {"id": None, "text": "t"}, {"id": " ", "text": "t"}])
def test_a_missing_id_is_made_from_the_content(record: dict) -> None:
    made = document(record)
    assert made.external_id.startswith(MADE_ID)
    assert made.flags == (DocumentFlag.ID_MADE,)
    assert document(dict(reversed(record.items()))).external_id == made.external_id
    assert document({**record, "more": 1}).external_id != made.external_id
    no_field = read_record(record, FieldMapping(None, "text"), 100)
    assert isinstance(no_field, Document)
    assert (no_field.external_id, no_field.flags) == (made.external_id, ())


@pytest.mark.parametrize(
    ("record", "code", "words"),
    [
        ({"id": "é" * ID_MAX_BYTES, "text": "x"}, RejectCode.TOO_LARGE, f"over {ID_MAX_BYTES:,} bytes"),
        ({"id": 1}, RejectCode.MISSING_TEXT, "no field 'text'"),
        ({"id": 1, "text": None}, RejectCode.MISSING_TEXT, "is null"),
        ({"id": 1, "text": 5}, RejectCode.TEXT_NOT_STRING, "is a number"),
        ({"id": 1, "text": ["x"]}, RejectCode.TEXT_NOT_STRING, "is an array"),
        ({"id": 1, "text": "x" * 101}, RejectCode.TOO_LARGE, "101 characters, over 100"),
        ({"id": 1, "text": ""}, RejectCode.EMPTY, "white space"),
        ({"id": 1, "text": " \n\t\u3000"}, RejectCode.EMPTY, "white space"),
    ],
)
def test_what_can_not_be_a_document_says_why(record: dict, code: RejectCode, words: str) -> None:
    made = reject(record)
    assert made.code == code
    assert words in made.reason
    assert 0 < len(made.excerpt) <= EXCERPT_CHARS


def test_the_longest_text_and_id_that_are_allowed_are_documents() -> None:
    assert document({"id": "i" * ID_MAX_BYTES, "text": "x" * 100}).text == "x" * 100


@pytest.mark.parametrize(
    ("mapping", "record", "text"),
    [
        (FieldMapping.of_fields("id", ["title", "abstract"]), {"title": "T", "abstract": "A"}, "T\n\nA"),
        (FieldMapping.of_template("id", "{title}: {abstract}."), {"title": "T", "abstract": "A"}, "T: A."),
        (FieldMapping.of_template("id", "{title}\n\n{abstract}"), {"title": None, "abstract": "A"}, "A"),
        (FieldMapping.of_template("id", "{title}\n\n{abstract}"), {"abstract": "A"}, "A"),
        (FieldMapping.of_template("id", "{{{year}}} {title}"), {"year": 1999, "title": "{T}"}, "{1999} {T}"),
    ],
)
def test_a_text_made_of_several_fields_keeps_them_as_metadata(mapping: FieldMapping, record: dict, text: str) -> None:
    made = read_record({"id": 1, **record}, mapping, 100)
    assert isinstance(made, Document), made
    assert made.text == text
    assert json.loads(made.meta) == record


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"title": "", "abstract": None}, RejectCode.MISSING_TEXT),
        ({}, RejectCode.MISSING_TEXT),
        ({"title": ["T"], "abstract": "A"}, RejectCode.TEXT_NOT_STRING),
    ],
)
def test_a_text_can_not_be_made_of_nothing(record: dict, code: RejectCode) -> None:
    made = read_record(record, FieldMapping.of_template(None, "{title}: {abstract}"), 100)
    assert isinstance(made, Reject)
    assert made.code == code


@pytest.mark.parametrize("template", ["no field", "{}", "{title", "{title!r}", "{title:>3}"])
def test_a_broken_text_template_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="--text"):
        FieldMapping.of_template("id", template)


def test_metadata_keep_what_is_called_like_the_id_or_the_text_deeper_inside() -> None:
    made = document({"id": 1, "text": "T", "more": {"id": 2, "text": ["U"]}, "list": [{"id": 3}], "__all__": 4})
    assert json.loads(made.meta) == {"more": {"id": 2, "text": ["U"]}, "list": [{"id": 3}], "__all__": 4}


def test_a_field_that_can_not_be_left_out_of_the_metadata_is_refused() -> None:
    with pytest.raises(UsageError, match="rename it"):
        FieldMapping("__all__", "text")


def test_a_template_of_one_field_is_that_field() -> None:
    assert FieldMapping.of_template("id", "{text}") == FieldMapping("id", "text")


@pytest.mark.parametrize(
    ("record", "flags"),
    [
        ({"id": "a", "text": "n\x00l"}, (DocumentFlag.NUL_REPLACED,)),
        ({"id": "a\x00", "text": "t"}, (DocumentFlag.NUL_REPLACED,)),
        ({"id": "a", "text": "t", "m": {"k\ud800": 1}}, (DocumentFlag.SURROGATE_REPLACED,)),
        ({"id": "a", "text": "\udfff", "m": ["\x00"]}, (DocumentFlag.NUL_REPLACED, DocumentFlag.SURROGATE_REPLACED)),
        ({"id": "a", "text": "it\x92s \x81"}, (DocumentFlag.C1_REPLACED,)),
        ({"text": "t", "m": "\x85"}, (DocumentFlag.C1_REPLACED, DocumentFlag.ID_MADE)),
    ],
)
def test_what_is_replaced_is_flagged_and_the_original_can_be_got_back(record: dict, flags: tuple) -> None:
    made = document(record)
    assert made.flags == flags
    assert storable(made.external_id + made.text + made.meta)
    assert len(made.text) == len(record["text"])
    assert "\\u0000" not in made.meta
    assert made.content_hash == sha256(record["text"].encode("utf-8", "surrogatepass")).digest()
    assert made.original is not None
    assert made.original.isascii()
    assert json.loads(made.original) == record


def test_c1_controls_become_what_windows_has_there() -> None:
    assert document({"id": 1, "text": "it\x92s \x80 5\x81"}).text == "it’s € 5\ufffd"


def test_an_escape_that_is_only_text_stays_text() -> None:
    made = document({"id": "a", "text": "\\u0000", "m": "\\ud800"})
    assert made.flags == ()
    assert made.text == "\\u0000"
    assert json.loads(made.meta) == {"m": "\\ud800"}


@given(st.dictionaries(st.sampled_from(["id", "text", "other"]), JSON_VALUES | WILD_TEXT))
@example({"id": {"\x00": None}, "text": "t"})
@example({"id": ["\x85"], "text": "t"})
def test_every_record_becomes_one_storable_document_or_reject(record: dict) -> None:
    made = read_record(record, MAPPING, 15)
    if isinstance(made, Document):
        assert made.external_id
        assert len(made.text) == len(record["text"])
        parts = [made.external_id, made.text, json.loads(made.meta)]
        # An id that is no string is kept as JSON, in which a NUL is escaped already.
        given_id = record.get("id")
        seen = {**record, "id": given_id if isinstance(given_id, str) else dump_json(given_id)}
        unchanged = not any_string(seen, lambda item: re.search("[\x00\x80-\x9f\ud800-\udfff]", item) is not None)
        if unchanged and isinstance(record.get("id"), str) and record["id"].strip():
            rest = {name: value for name, value in record.items() if name not in ("id", "text")}
            assert parts == [record["id"], record["text"], rest]
        assert (made.original is None) == unchanged
        if made.original is not None:
            assert json.loads(made.original) == record
    else:
        parts = [made.reason, made.excerpt]
    assert not any_string(parts, lambda item: not storable(item))
