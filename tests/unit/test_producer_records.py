"""Records become documents that Postgres can store, or rejects with a reason in words."""

import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.records import EXCERPT_CHARS, ID_MAX_BYTES, Document, FieldMapping, Reject, read_record
from schemas.jsontext import any_string, storable
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


def test_a_document_keeps_text_and_every_other_field() -> None:
    made = document({"id": "a", "text": " Hello\n", "year": 2001, "nested": {"x": [1, None, 0.5]}})
    assert made.text == " Hello\n"
    assert json.loads(made.meta) == {"year": 2001, "nested": {"x": [1, None, 0.5]}}
    assert made.content_hash == sha256(b" Hello\n").digest()
    assert made.flags == ()


@pytest.mark.parametrize(
    ("given_id", "kept"), [("a", "a"), (7, "7"), (-1, "-1"), (10**30, str(10**30)), (" b ", " b ")]
)
def test_ids_are_kept_as_text(given_id: object, kept: str) -> None:
    assert document({"id": given_id, "text": ""}).external_id == kept


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_text_without_words_is_a_document(text: str) -> None:
    assert document({"id": 1, "text": text}).text == text


@pytest.mark.parametrize(
    ("record", "code", "words"),
    [
        ({"text": "x"}, RejectCode.MISSING_ID, "no field 'id'"),
        ({"id": None, "text": "x"}, RejectCode.MISSING_ID, "is null"),
        ({"id": True, "text": "x"}, RejectCode.MISSING_ID, "is a boolean"),
        ({"id": 1.5, "text": "x"}, RejectCode.MISSING_ID, "is a number"),
        ({"id": [1], "text": "x"}, RejectCode.MISSING_ID, "is an array"),
        ({"id": {}, "text": "x"}, RejectCode.MISSING_ID, "is an object"),
        ({"id": " ", "text": "x"}, RejectCode.MISSING_ID, "is empty"),
        ({"id": "é" * ID_MAX_BYTES, "text": "x"}, RejectCode.TOO_LARGE, f"over {ID_MAX_BYTES} bytes"),
        ({"id": 1}, RejectCode.MISSING_TEXT, "no field 'text'"),
        ({"id": 1, "text": None}, RejectCode.TEXT_NOT_STRING, "is null"),
        ({"id": 1, "text": 5}, RejectCode.TEXT_NOT_STRING, "is a number"),
        ({"id": 1, "text": ["x"]}, RejectCode.TEXT_NOT_STRING, "is an array"),
        ({"id": 1, "text": "x" * 101}, RejectCode.TOO_LARGE, "101 characters, over 100"),
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
    ("record", "flags"),
    [
        ({"id": "a", "text": "n\x00l"}, (DocumentFlag.NUL_REPLACED,)),
        ({"id": "a\x00", "text": ""}, (DocumentFlag.NUL_REPLACED,)),
        ({"id": "a", "text": "", "m": {"k\ud800": 1}}, (DocumentFlag.SURROGATE_REPLACED,)),
        ({"id": "a", "text": "\udfff", "m": ["\x00"]}, (DocumentFlag.NUL_REPLACED, DocumentFlag.SURROGATE_REPLACED)),
    ],
)
def test_what_postgres_can_not_store_is_replaced_and_flagged(record: dict, flags: tuple[DocumentFlag, ...]) -> None:
    made = document(record)
    assert made.flags == flags
    assert storable(made.external_id + made.text + made.meta)
    assert "\\u0000" not in made.meta
    assert made.content_hash == sha256(record["text"].encode("utf-8", "surrogatepass")).digest()


def test_an_escape_that_is_only_text_stays_text() -> None:
    made = document({"id": "a", "text": "\\u0000", "m": "\\ud800"})
    assert made.flags == ()
    assert made.text == "\\u0000"
    assert json.loads(made.meta) == {"m": "\\ud800"}


@given(st.dictionaries(st.sampled_from(["id", "text", "other"]), JSON_VALUES | WILD_TEXT))
def test_every_record_becomes_one_storable_document_or_reject(record: dict) -> None:
    made = read_record(record, MAPPING, 15)
    if isinstance(made, Document):
        assert made.external_id
        assert len(made.text) == len(record["text"])
        parts = [made.external_id, made.text, json.loads(made.meta)]
        was_storable = not any_string(record, lambda item: not storable(item))
        if was_storable:
            rest = {name: value for name, value in record.items() if name not in ("id", "text")}
            assert parts == [str(record["id"]), record["text"], rest]
        assert bool(made.flags) != was_storable
    else:
        parts = [made.reason, made.excerpt]
    assert not any_string(parts, lambda item: not storable(item))
