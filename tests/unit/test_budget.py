import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.budget import CLOSING_TOKENS, UNBOUNDED_STRING_CHARS, max_output_tokens, reserved_output_tokens, room_words
from schemas.label_spec import builtin_names, load_label_spec
from schemas.lint import lint
from schemas.normalise import normalise

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e300, 1e300) | ANY_TEXT
PATTERN = "^[a-z中]{1,700}$"


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def bounds(keyword: str, largest: int) -> st.SearchStrategy[dict[str, Any]]:
    """A lower and an upper bound, or one of them, or none."""
    pairs = st.tuples(st.integers(0, largest), st.integers(0, largest)).map(sorted)
    both = pairs.map(lambda pair: {f"min{keyword}": pair[0], f"max{keyword}": pair[1]})
    return both | both.map(lambda pair: {f"max{keyword}": pair[f"max{keyword}"]}) | st.just({})


LEAVES = st.one_of(
    st.sampled_from(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "number"},
            {"type": "integer"},
            {"type": "integer", "minimum": -(2**63) + 1, "maximum": 2**63 - 1},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"type": "string", "pattern": PATTERN},
            {"type": ["string", "null"], "maxLength": 5},
        ]
    ),
    bounds("Length", 30).map(lambda given: {"type": "string", **given}),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    (SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(NAMES, SCALARS, max_size=3)).map(
        lambda value: {"const": value}
    ),
)


def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.dictionaries(NAMES, inner, max_size=4).map(closed),
        st.tuples(inner, bounds("Items", 4)).map(lambda pair: {"type": "array", "items": pair[0], **pair[1]}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"type": "array", "prefixItems": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda cases: {"anyOf": cases}),
    )


SCHEMAS = st.dictionaries(NAMES, st.recursive(LEAVES, larger, max_leaves=6), min_size=1, max_size=4).map(closed)


def labels(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values valid under a normalised schema, many of them as large as it allows."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([labels(case) for case in schema["anyOf"]])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([of_kind(kind, schema) for kind in kinds])


def of_kind(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "object":
        return st.fixed_dictionaries({name: labels(item) for name, item in schema["properties"].items()})
    if kind == "array" and "prefixItems" in schema:
        return st.tuples(*(labels(part) for part in schema["prefixItems"])).map(list)
    if kind == "array":
        return st.lists(labels(schema["items"]), min_size=schema.get("minItems", 0), max_size=schema["maxItems"])
    if kind == "string" and "format" in schema:
        return (st.dates() if schema["format"] == "date" else st.uuids()).map(str)
    if kind == "string" and "pattern" in schema:
        return st.sampled_from(["a", "中" * 700, "z" * 700])
    if kind == "string":
        low, high = schema.get("minLength", 0), schema["maxLength"]
        full = st.sampled_from('a\x01"\\å中\uffff😀').map(lambda character: character * high)
        return full | st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=high)
    if kind == "integer":
        return st.integers(schema["minimum"], schema["maximum"])
    if kind == "number":
        return st.floats(allow_nan=False, allow_infinity=False)
    return st.booleans() if kind == "boolean" else st.none()


def escaped_units(value: Any) -> Any:
    """The label as an engine sees it that writes every character as an escape: half a pair counts as a character."""
    if isinstance(value, str):
        return "".join("å" if ord(character) > 0xFFFF else character for character in value)
    if isinstance(value, list):
        return [escaped_units(item) for item in value]
    return {name: escaped_units(item) for name, item in value.items()} if isinstance(value, dict) else value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_no_valid_label_needs_more_bytes_than_the_budget_has_tokens(data):
    schema = normalise(data.draw(SCHEMAS)).json_schema
    lint(schema)
    budget = max_output_tokens(schema) - CLOSING_TOKENS
    label = data.draw(labels(schema))
    assert Draft202012Validator(schema).is_valid(label)
    for separators in ((",", ":"), (", ", ": ")):  # some engines write the spaces
        assert len(json.dumps(label, ensure_ascii=False, separators=separators).encode()) <= budget
        # An escaped pair is two characters to a grammar, so a string of n characters holds n / 2 of them.
        assert len(json.dumps(escaped_units(label), ensure_ascii=True, separators=separators)) <= budget


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_the_room_reserved_is_positive_and_never_above_the_budget(schema):
    normalised = normalise(schema).json_schema
    assert 0 < reserved_output_tokens(normalised) <= max_output_tokens(normalised)


def tokens(field: dict[str, Any]) -> int:
    return max_output_tokens(field) - CLOSING_TOKENS


@pytest.mark.parametrize(
    "value", ["å", "😀😀😀😀", 'q"\\', 0.1, -2.2250738585072014e-308, 2**63 - 1, None, ["😀", {"😀": 1}]]
)
def test_a_fixed_value_fits_written_with_or_without_escapes(value):
    for field in ({"const": value}, {"enum": [value, None]}):
        assert tokens(field) >= len(json.dumps(value))
        assert tokens(field) >= len(json.dumps(value, ensure_ascii=False).encode())


def test_engines_write_a_double_with_seventeen_digits():
    assert tokens({"enum": [0.1]}) >= len("0.10000000000000001")


def test_names_of_properties_fit_escaped():
    assert tokens(closed({"😀" * 9: {"type": "null"}})) >= len(json.dumps({"😀" * 9: None}))


def test_a_list_of_booleans_fits_with_spaces_after_the_commas():
    field = {"type": "array", "items": {"type": "boolean"}, "maxItems": 500}
    assert tokens(field) >= len(json.dumps([False] * 500))


def test_a_longer_string_needs_more():
    sizes = [tokens({"type": "string", "maxLength": length}) for length in (0, 1, 80, 10_000)]
    assert sizes == sorted(set(sizes))
    assert sizes[0] == len('""')


def test_cases_need_as_much_as_the_largest():
    short, long = {"type": "string", "maxLength": 1}, {"type": "string", "maxLength": 99}
    assert tokens({"anyOf": [short, long, {"type": "null"}]}) == tokens(long)


def test_the_length_that_a_pattern_names_counts():
    assert tokens({"type": "string", "pattern": "^[a-z]{1,5000}$"}) >= 5000
    assert tokens({"type": "string", "pattern": "^a+$"}) >= UNBOUNDED_STRING_CHARS


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_label_leaves_room_for_a_document_in_a_small_context(name):
    spec, _ = load_label_spec(name)
    assert spec.reserved_output_tokens < 512
    assert spec.reserved_output_tokens < spec.max_output_tokens


def test_a_label_that_takes_most_of_the_context_is_told_with_the_remedy() -> None:
    assert "maxItems" not in room_words(4096, 2048)
    assert "4,096 tokens 2,049 are kept" in room_words(4096, 2049)
    assert "allow fewer items (maxItems)" in room_words(4096, 2049)
