from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from schemas.errors import UsageError
from schemas.label_spec import LabelSpec, builtin_names, load_label_spec
from schemas.normalise import normalise
from schemas.views import _AFTER, _BEFORE, MAX_COLUMNS, MAX_IDENTIFIER_BYTES, column_names, column_type, view_name


class Tone(StrEnum):
    WARM = "warm"
    COLD = "cold"


class Part(BaseModel):
    name: str


class Typed(BaseModel):
    text: str
    text_or_none: str | None
    whole: int
    whole_or_none: int | None
    share: float
    truth: bool
    tone: Tone
    tone_or_none: Tone | None
    word: Literal["a", "b"]
    one_word: Literal["a"]
    level: Literal[1, 2, 3]
    level_or_none: Literal[1, 2] | None
    answer: Literal["yes", 1]
    flag: Literal[True]
    amount: Decimal
    number_or_text: int | str
    number: int | float
    day: date
    day_or_none: date | None
    moment: datetime
    key: UUID
    words: list[str]
    words_or_none: list[str] | None
    maybe_words: list[str | None]
    sizes: list[int]
    tones: list[Tone]
    days: list[date]
    parts: list[Part]
    table: list[list[str]]
    pair: tuple[int, str]
    part: Part
    part_or_none: Part | None


EXPECTED = {
    "text": "text",
    "text_or_none": "text",
    "whole": "bigint",
    "whole_or_none": "bigint",
    "share": "double precision",
    "truth": "boolean",
    "tone": "text",
    "tone_or_none": "text",
    "word": "text",
    "one_word": "text",
    "level": "bigint",
    "level_or_none": "bigint",
    "answer": "jsonb",
    "flag": "boolean",
    "amount": "jsonb",
    "number_or_text": "jsonb",
    "number": "double precision",
    "day": "date",
    "day_or_none": "date",
    "moment": "timestamptz",
    "key": "uuid",
    "words": "text[]",
    "words_or_none": "text[]",
    "maybe_words": "text[]",
    "sizes": "bigint[]",
    "tones": "text[]",
    "days": "date[]",
    "parts": "jsonb",
    "table": "jsonb",
    "pair": "jsonb",
    "part": "jsonb",
    "part_or_none": "jsonb",
}


@pytest.mark.parametrize("field", EXPECTED)
def test_the_column_of_a_pydantic_field(field):
    schema = normalise(Typed.model_json_schema()).json_schema
    assert schema["properties"].keys() == EXPECTED.keys()
    assert column_type(schema["properties"][field]) == EXPECTED[field]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, "text"),
        ({"type": ["integer"]}, "bigint"),
        ({"type": ["string", "integer"]}, "jsonb"),
        ({"type": ["string", "null"], "format": "date"}, "date"),
        ({"type": "string", "format": "email"}, "text"),
        ({"type": "string", "format": "time"}, "text"),
        ({"type": "null"}, "jsonb"),
        ({"const": None}, "text"),
        ({"enum": ["a", None]}, "text"),
        ({"enum": [1, 2.5]}, "double precision"),
        ({"enum": [1, None]}, "bigint"),
        ({"enum": [True, 1]}, "jsonb"),
        ({"enum": [{"a": 1}]}, "jsonb"),
        ({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^\\d+$"}, {"type": "null"}]}, "jsonb"),
        ({"anyOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "null"}]}, "text"),
        ({"anyOf": [{"const": "a"}, {"type": "string", "format": "date"}]}, "jsonb"),
        ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "bigint[]"),
        ({"type": "array", "items": {"type": ["string", "integer"]}}, "jsonb"),
        ({"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "integer"}}, "jsonb"),
        ({"type": "array", "prefixItems": [{"type": "boolean"}], "items": False}, "jsonb"),
        ({"type": ["array", "null"], "items": {"type": "string"}}, "text[]"),
        ({"type": ["object", "null"], "properties": {}}, "jsonb"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "text"),
        ({"type": "string", "anyOf": [{"pattern": "^a"}, {"maxLength": 3}]}, "text"),
    ],
)
def test_the_column_of_a_json_schema(schema, expected):
    assert column_type(schema) == expected


def spec(*fields, name="things"):
    schema = {"type": "object", "properties": {field: {"type": "null"} for field in fields}}
    return LabelSpec(name=name, json_schema=schema, system_prompt="x")


def test_columns_are_named_like_their_fields_and_in_their_order():
    assert column_names(spec("b", "a", "größe", "量", "Mixed Case", 'quo"te', "100%")) == {
        name: name for name in ("b", "a", "größe", "量", "Mixed Case", 'quo"te', "100%")
    }
    assert list(column_names(spec("b", "a"))) == ["b", "a"]


@pytest.mark.parametrize(
    "field",
    ["job_id", "document_id", "outcome", "reason_code", "reason", "raw_output", "model", "meta", "document_flags",
     "worker", "labeled_at"],
)  # fmt: skip
def test_a_field_named_like_one_of_ours_gets_a_prefix(field):
    assert column_names(spec(field, "other")) == {field: f"label_{field}", "other": "other"}


@pytest.mark.parametrize("fields", [("outcome", "label_outcome"), ("label_model", "model")])
def test_two_fields_that_would_share_a_column_are_refused(fields):
    with pytest.raises(UsageError, match=r"share the column 'label_(outcome|model)': rename one"):
        column_names(spec(*fields))


@pytest.mark.parametrize("field", ["a" * 63, "å" * 31, "量" * 21, "😀" * 15])
def test_the_longest_names_that_postgres_keeps_whole(field):
    assert column_names(spec(field)) == {field: field}


@pytest.mark.parametrize("field", ["", "a" * 64, "å" * 32, "量" * 22, "😀" * 16, "nul\x00"])
def test_a_name_that_postgres_would_cut_or_refuse_is_refused(field):
    with pytest.raises(UsageError, match=f"1 to {MAX_IDENTIFIER_BYTES} bytes"):
        column_names(spec(field))


def test_a_view_is_named_by_schema_and_version():
    assert view_name(spec("a", name="papers"), 12) == "papers_v12"


def test_the_longest_name_leaves_room_for_the_version():
    assert len(view_name(spec("a", name="a" * 41), 10**9)) <= MAX_IDENTIFIER_BYTES


@pytest.mark.parametrize("name", builtin_names())
def test_no_field_of_a_built_in_schema_needs_json_operators(name):
    built_in, _ = load_label_spec(name)
    types = {field: column_type(item) for field, item in built_in.json_schema["properties"].items()}
    assert "jsonb" not in types.values()
    assert column_names(built_in).keys() == types.keys()


def test_descriptions_survive_normalising_for_the_comments():
    class Described(BaseModel):
        tone: Tone = Field(description="How it sounds.")

    assert normalise(Described.model_json_schema()).json_schema["properties"]["tone"]["description"] == "How it sounds."


def test_integers_that_a_bigint_does_not_hold_are_numeric():
    assert column_type({"enum": [1, 2**63 - 1, None]}) == "bigint"
    assert column_type({"enum": [1, 10**20]}) == "numeric"
    assert column_type({"const": -(10**20)}) == "numeric"
    assert column_type({"type": "array", "items": {"enum": [10**20]}}) == "numeric[]"


def test_more_fields_than_a_view_has_columns_are_refused():
    most = MAX_COLUMNS - len(_BEFORE) - len(_AFTER)
    fields = {f"f{n}": {"type": "boolean"} for n in range(most + 1)}
    many = spec("a").model_copy(update={"json_schema": {"type": "object", "properties": fields}})
    with pytest.raises(UsageError, match=f"{most + 1} fields are more columns than a view can have: {most}"):
        column_names(many)
    fields.popitem()
    assert len(column_names(many)) == most
