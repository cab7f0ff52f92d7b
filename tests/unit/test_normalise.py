import json
from enum import StrEnum
from typing import Literal

import pytest
from pydantic import BaseModel, Field, create_model

from schemas.errors import UsageError
from schemas.label_schema import LabelSchema
from schemas.lint import lint
from schemas.normalise import DEFAULT_MAX_ITEMS, DEFAULT_MAX_LENGTH, MAX_EXACT_INTEGER, normalise


class Tone(StrEnum):
    WARM = "warm"
    COLD = "cold"


class Person(BaseModel):
    name: str
    age: int | None = None


class Everything(BaseModel):
    title: str
    tone: Tone = Field(Tone.WARM, description="How it sounds.")
    people: list[Person]
    chief: Person | None
    pair: tuple[int, str]
    size: int
    share: float
    kind: Literal["a", "b"] = "a"


def of(**properties):
    return {"type": "object", "properties": properties}


def plain(schema):
    return normalise(schema).json_schema


def objects(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for item in schema.values():
            yield from objects(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from objects(item)


@pytest.mark.parametrize(
    "schema",
    [
        Everything.model_json_schema(),
        of(a={"anyOf": [{"type": "array"}, {"type": "null"}]}, b={"type": ["string", "integer", "null"]}),
        of(a={"allOf": [{"type": "string"}], "description": "x"}, b={"const": {"title": 1}}),
        of(a={"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
    ],
)
def test_normalising_twice_changes_nothing_more(schema):
    once = normalise(schema)
    twice = normalise(once.json_schema)
    assert json.dumps(twice.json_schema) == json.dumps(once.json_schema)
    assert twice.notes == ()


def test_a_pydantic_class_passes_the_linter_when_normalised():
    schema = plain(Everything.model_json_schema())
    lint(schema)
    assert list(schema["properties"]) == ["title", "tone", "people", "chief", "pair", "size", "share", "kind"]


def test_the_given_schema_is_not_changed():
    schema = Everything.model_json_schema()
    before = json.dumps(schema)
    normalise(schema)
    assert json.dumps(schema) == before


def test_two_equal_classes_give_the_same_bytes():
    fields = {"title": (str, Field(max_length=9)), "tone": (Tone, ...), "n": (int | None, None)}
    one, two = create_model("One", **fields), create_model("Two", **fields)
    assert json.dumps(plain(one.model_json_schema())) == json.dumps(plain(two.model_json_schema()))


def test_order_of_properties_is_kept_and_matters():
    assert list(plain(of(z={"type": "null"}, a={"type": "null"}))["properties"]) == ["z", "a"]


@pytest.mark.parametrize(
    "name", ["title", "default", "examples", "$defs", "definitions", "$schema", "$id", "$ref", "type", "properties"]
)
def test_a_property_named_like_a_keyword_survives_at_every_level(name):
    inner = {"type": "object", "properties": {name: {"type": "boolean", "title": "T"}}, "required": [name]}
    schema = plain({**of(**{name: inner, "items": {"type": "array", "items": inner}}), "required": [name]})
    closed = {
        "type": "object",
        "properties": {name: {"type": "boolean"}},
        "required": [name],
        "additionalProperties": False,
    }
    assert schema["properties"][name] == closed
    assert schema["properties"]["items"]["items"] == closed
    assert schema["required"] == [name]


def test_words_about_the_schema_are_dropped_and_descriptions_kept():
    schema = plain(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "x",
            "title": "T",
            "description": "D",
            **of(a={"type": "boolean", "title": "A", "default": True, "examples": [True], "description": "d"}),
        }
    )
    assert schema == {
        "description": "D",
        "type": "object",
        "properties": {"a": {"type": "boolean", "description": "d"}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_values_are_never_touched(keyword):
    value = {"title": "x", "$ref": "#/nowhere", "properties": {"default": 1}, "type": "string"}
    given = [value] if keyword == "enum" else value
    assert plain(of(a={keyword: given}))["properties"]["a"] == {keyword: given}


def test_an_enum_of_strings_gets_no_length():
    assert plain(of(a={"type": "string", "enum": ["å", "中"]}))["properties"]["a"] == {
        "type": "string",
        "enum": ["å", "中"],
    }


def test_optional_fields_stay_optional_and_nullable():
    schema = plain(Person.model_json_schema())
    assert schema["required"] == ["name"]
    assert schema["properties"]["age"] == {
        "anyOf": [
            {"type": "integer", "minimum": -MAX_EXACT_INTEGER, "maximum": MAX_EXACT_INTEGER},
            {"type": "null"},
        ]
    }


def test_objects_are_closed_at_every_level():
    leaf = of(x={"type": "null"})
    schema = plain(
        of(
            a=leaf,
            b={"anyOf": [leaf, {"type": "null"}]},
            c={"type": "array", "items": {"anyOf": [leaf, {"type": "array", "items": leaf}]}},
            d={"type": "array", "prefixItems": [leaf], "items": leaf},
            e={"type": ["object", "null"], "properties": {"y": leaf}},
        )
    )
    found = list(objects(schema))
    assert len(found) == 8  # the root and seven leaves
    assert all(item["additionalProperties"] is False for item in found)
    assert schema["properties"]["e"]["additionalProperties"] is False


@pytest.mark.parametrize("given", [True, {"type": "string"}])
def test_opening_an_object_is_undone_and_said(given):
    result = normalise({**of(a={"type": "null"}), "additionalProperties": given})
    assert result.json_schema["additionalProperties"] is False
    assert any("additionalProperties is now false" in note for note in result.notes)


def test_base_class_that_forbids_extra_fields_needs_no_note():
    class Small(LabelSchema):
        a: bool

    assert normalise(Small.model_json_schema()).notes == ()


@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": DEFAULT_MAX_LENGTH}),
        ({"type": "string", "minLength": 2}, {"type": "string", "minLength": 2, "maxLength": DEFAULT_MAX_LENGTH}),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 3}),
        ({"type": "string", "pattern": "^a$"}, {"type": "string", "pattern": "^a$"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"], "maxLength": DEFAULT_MAX_LENGTH}),
        (
            {"type": "array", "items": {"type": "null"}},
            {"type": "array", "items": {"type": "null"}, "maxItems": DEFAULT_MAX_ITEMS},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "null"}]},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "null"}},
            {
                "type": "array",
                "prefixItems": [{"type": "null"}],
                "items": {"type": "null"},
                "maxItems": DEFAULT_MAX_ITEMS,
            },
        ),
        ({"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 0, "maximum": MAX_EXACT_INTEGER}),
        (
            {"type": "integer", "exclusiveMaximum": 5},
            {"type": "integer", "exclusiveMaximum": 5, "minimum": -MAX_EXACT_INTEGER},
        ),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
        ({"type": "number"}, {"type": "number"}),
    ],
)
def test_everything_gets_a_bound(given, bounded):
    assert plain(of(a=given))["properties"]["a"] == bounded


def test_bounds_are_said_with_their_path():
    notes = normalise(of(a=of(b={"type": "array", "items": {"type": "string"}}))).notes
    assert notes == (
        f"$.a.b.items: no maxLength, bounded to {DEFAULT_MAX_LENGTH} characters",
        f"$.a.b: no maxItems, bounded to {DEFAULT_MAX_ITEMS} items",
    )


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_chains_of_references_are_followed(key):
    schema = {
        key: {
            "A": {"$ref": f"#/{key}/B", "description": "of A"},
            "B": {"$ref": f"#/{key}/C"},
            "C": {"enum": ["x"], "description": "of C"},
        },
        **of(a={"$ref": f"#/{key}/A"}, b={"$ref": f"#/{key}/B", "description": "mine"}),
    }
    assert plain(schema) == {
        "type": "object",
        "properties": {"a": {"enum": ["x"], "description": "of A"}, "b": {"enum": ["x"], "description": "mine"}},
        "additionalProperties": False,
    }


def test_a_name_that_both_sections_define_means_the_one_referred_to():
    schema = {
        "$defs": {"A": {"const": 1}},
        "definitions": {"A": {"const": 2}},
        **of(a={"$ref": "#/$defs/A"}, b={"$ref": "#/definitions/A"}),
    }
    assert plain(schema)["properties"] == {"a": {"const": 1}, "b": {"const": 2}}


def test_escaped_names_of_definitions_are_understood():
    assert plain({"$defs": {"a/b~c": {"const": 1}}, **of(a={"$ref": "#/$defs/a~1b~0c"})})["properties"]["a"] == {
        "const": 1
    }


def test_a_root_that_is_a_reference_is_followed():
    class Root(BaseModel):
        people: list[Person]

    schema = Root.model_json_schema()
    wrapped = {"$defs": {**schema.pop("$defs"), "Root": schema}, "$ref": "#/$defs/Root"}
    assert plain(wrapped) == plain(Root.model_json_schema())


def test_one_definition_may_be_used_twice():
    schema = plain({"$defs": {"A": of(x={"type": "null"})}, **of(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/A"})})
    assert schema["properties"]["a"] == schema["properties"]["b"]


class Tree(BaseModel):
    children: list["Tree"]


@pytest.mark.parametrize(
    "schema",
    [
        Tree.model_json_schema(),
        {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, **of(a={"$ref": "#/$defs/A"})},
        {"$defs": {"A": of(b={"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]})}, **of(a={"$ref": "#/$defs/A"})},
        of(a={"$ref": "#"}),
    ],
)
def test_a_schema_that_contains_itself_is_refused(schema):
    with pytest.raises(UsageError, match="refers to itself"):
        normalise(schema)


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("#/$defs/Gone", "leads nowhere"),
        ("https://example.org/x.json", "leads outside"),
        ("other.json#/$defs/A", "leads outside"),
        ("#/properties/b", "leads outside"),
        ("#/$defs/A/properties/x", "leads nowhere"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_named(reference, why):
    schema = {"$defs": {"A": of(x={"type": "null"}), "x": {"const": 1}}, **of(a={"$ref": reference}, b={"const": 1})}
    with pytest.raises(UsageError, match=rf"\$\.a: .*{why}"):
        normalise(schema)


def test_a_single_all_of_is_unwrapped_before_bounds():
    schema = {"$defs": {"Name": {"type": "string"}}, **of(a={"allOf": [{"$ref": "#/$defs/Name"}], "maxLength": 5})}
    assert plain(schema)["properties"]["a"] == {"type": "string", "maxLength": 5}


@pytest.mark.parametrize(
    "node",
    [
        {"$ref": "#/$defs/A", "properties": {"y": {"type": "null"}}},
        {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"y": {"type": "null"}}},
    ],
)
def test_fields_of_a_base_come_first(node):
    field = plain({"$defs": {"A": of(x={"type": "null"})}, **of(a=node)})["properties"]["a"]
    assert list(field["properties"]) == ["x", "y"]
    assert field["additionalProperties"] is False


def test_parts_of_all_of_are_merged():
    parts = [
        {**of(x={"type": "integer"}), "required": ["x"]},
        {**of(y={"type": "null"}, x={"minimum": 0, "maximum": 9}), "required": ["y", "x"], "description": "d"},
    ]
    assert plain(of(a={"allOf": parts}))["properties"]["a"] == {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"type": "null"}},
        "required": ["x", "y"],
        "description": "d",
        "additionalProperties": False,
    }


def test_two_parts_may_share_a_base():
    schema = {"$defs": {"B": of(x={"type": "null"}), "A": {"$ref": "#/$defs/B"}}}
    merged = plain({**schema, **of(a={"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]})})
    assert list(merged["properties"]["a"]["properties"]) == ["x"]


def test_conditions_that_cannot_be_merged_stay_apart():
    cases = [{"if": {"const": n}, "then": {"const": n}} for n in (1, 2, 3)]
    field = plain(of(a={"type": "integer", "allOf": cases}))["properties"]["a"]
    assert [field["if"], *(case["if"] for case in field["allOf"])] == [{"const": 3}, {"const": 1}, {"const": 2}]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"type": "string"}, {"type": "null"}], "`type` is set here"),
        ([{"type": "string", "maxLength": 3}, {"maxLength": 4}], "`maxLength` is set here"),
        ([of(x={"type": "string"}), of(x={"type": "null"})], "x: `type` is set here"),
        ([{**of(x={"type": "null"}), "additionalProperties": False}, of(y={"type": "null"})], "closed object"),
        ([of(y={"type": "null"}), {**of(x={"type": "null"}), "additionalProperties": False}], "closed object"),
        ([{"type": "array", "items": {"type": "null"}}, {"prefixItems": [{"type": "null"}]}], "`items` is set here"),
        ([{"type": "string", "if": {"const": "a"}}, {"type": "string", "then": {"const": "a"}}], "`if` is set here"),
    ],
)
def test_parts_that_cannot_be_merged_are_refused(parts, message):
    with pytest.raises(UsageError, match=rf"\$\.a.*{message}|{message}"):
        normalise(of(a={"allOf": parts}))


def test_schemas_that_only_restrict_are_not_bounded():
    inner = {"type": "object", "properties": {"x": {"type": "string"}}}
    field = {
        "type": "array",
        "items": {"type": "null"},
        "maxItems": 2,
        "not": {"type": "array", "items": {"type": "string"}},
        "contains": inner,
        "if": inner,
        "anyOf": [{"type": "array", "items": inner}, {"minItems": 1}],
    }
    assert plain(of(a=field))["properties"]["a"] == field


def test_definitions_are_put_into_restrictions():
    field = {"type": "array", "items": {"type": "null"}, "maxItems": 2, "contains": {"$ref": "#/$defs/A"}}
    assert plain({"$defs": {"A": {"const": 1}}, **of(a=field)})["properties"]["a"]["contains"] == {"const": 1}


def test_patterns_of_properties_hold_for_those_that_are_named():
    result = normalise(
        of(a={**of(x1={"type": "string"}, y={"type": "null"}), "patternProperties": {"^x": {"maxLength": 3}}})
    )
    assert result.json_schema["properties"]["a"] == {
        "type": "object",
        "properties": {"x1": {"maxLength": 3, "type": "string"}, "y": {"type": "null"}},
        "additionalProperties": False,
    }
    assert any("patternProperties now holds for the fields" in note for note in result.notes)


def test_a_dynamic_reference_is_refused():
    with pytest.raises(UsageError, match=r"\$\.a\.not: `\$dynamicRef`"):
        normalise(of(a={"type": "string", "not": {"$dynamicRef": "#x"}}))


@pytest.mark.parametrize(
    "more", [{"pattern": "a"}, {"pattern": "^a$", "minLength": 1}, {"format": "iri"}, {"format": "x"}]
)
def test_a_string_whose_pattern_or_format_is_moved_gets_a_bound(more):
    assert plain(of(a={"type": "string", **more}))["properties"]["a"]["maxLength"] == DEFAULT_MAX_LENGTH


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object"},
        {"type": "object", "properties": {}},
        [],
        "x",
        True,
    ],
)
def test_a_root_without_fields_is_refused(schema):
    with pytest.raises(UsageError, match="a label schema"):
        normalise(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": {"a": {"$ref": 1}}},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {**of(a={"const": 1}), "$defs": []},
        of(a={"anyOf": {}}),
        of(a={"type": "array", "items": [{"type": "string"}]}),
    ],
)
def test_what_is_no_json_schema_is_refused_with_its_place(schema):
    with pytest.raises(UsageError, match=r"not a JSON Schema: \$"):
        normalise(schema)


def test_nesting_beyond_any_stack_is_refused():
    schema = {"type": "null"}
    for _ in range(5000):
        schema = of(a=schema)
    with pytest.raises(UsageError, match="nested over"):
        normalise(schema)
