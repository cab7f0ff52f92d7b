import json
import re
from typing import Annotated, Literal

import pytest
from backend import can_write, grammar, vllm_accepts
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, HttpUrl, conint, conlist, constr

from schemas.budget import max_output_tokens
from schemas.errors import UsageError
from schemas.grammar import RESTRICTIONS, grammar_of
from schemas.label_spec import LabelSpec, builtin_names, load_label_spec
from schemas.lint import lint
from schemas.normalise import DEFAULT_MAX_LENGTH, normalise
from schemas.outcomes import Reason, RowFinal
from worker.check import LabelCheck
from worker.engine.plain_label import plain_label_text

AFTER = "is checked after generation: the engine can't constrain it"
DESCRIBES = "only describes: the engine can't constrain it, and nothing checks it"
NULL = {"type": "null"}
STRING = {"type": "string", "maxLength": 9}
WHOLE = {"type": "integer", "minimum": 0, "maximum": 99}
NULLS = {"type": "array", "items": {"type": ["null", "boolean"]}, "maxItems": 3}
PAIR = {"type": "object", "properties": {"x": NULL, "y": NULL}, "additionalProperties": False}
DEFAULT = {"type": "string", "maxLength": DEFAULT_MAX_LENGTH}


def label(field):
    return {"type": "object", "properties": {"a": field}, "required": ["a"], "additionalProperties": False}


def text(**more):
    return {"type": "string", **more}


#: name: field, what the engine gets of it, the keywords moved, a value that breaks only those.
MOVED = {
    "multipleOf": ({**WHOLE, "multipleOf": 5}, WHOLE, ["multipleOf"], 7),
    "uniqueItems": ({**NULLS, "uniqueItems": True}, NULLS, ["uniqueItems"], [None, None]),
    "contains": (
        {**NULLS, "contains": NULL, "minContains": 1, "maxContains": 1},
        NULLS,
        ["contains", "minContains", "maxContains"],
        [None, None],
    ),
    "unevaluatedItems": ({**NULLS, "unevaluatedItems": False}, NULLS, ["unevaluatedItems"], ...),
    "propertyNames": ({**PAIR, "propertyNames": {"const": "x"}}, PAIR, ["propertyNames"], {"y": None}),
    "unevaluatedProperties": ({**PAIR, "unevaluatedProperties": False}, PAIR, ["unevaluatedProperties"], ...),
    "dependentRequired": ({**PAIR, "dependentRequired": {"x": ["y"]}}, PAIR, ["dependentRequired"], {"x": None}),
    "dependentSchemas": (
        {**PAIR, "dependentSchemas": {"x": {"required": ["y"]}}},
        PAIR,
        ["dependentSchemas"],
        {"x": None},
    ),
    "not": ({**STRING, "not": {"const": "b"}}, STRING, ["not"], "b"),
    "if then else": (
        {**STRING, "if": {"minLength": 3}, "then": {"pattern": "^b"}, "else": {"pattern": "^c"}},
        STRING,
        ["if", "then", "else"],
        "aaa",
    ),
    "conditions": (
        {**PAIR, "allOf": [{"if": {"required": [name]}, "then": {"required": ["y"]}} for name in "xy"]},
        PAIR,
        ["if", "then", "allOf"],
        {"x": None},
    ),
    "pattern with length": (text(pattern="^a+$", maxLength=9), STRING, ["pattern"], "b"),
    "pattern with least length": (text(pattern="^a+$", minLength=1), {**DEFAULT, "minLength": 1}, ["pattern"], "b"),
    "format with length": (text(format="date", maxLength=9), text(format="date"), ["maxLength"], "2024-01-01"),
    "format with pattern": (text(format="date", pattern="^20"), text(format="date"), ["pattern"], "1999-01-01"),
    "format checked": (text(format="regex"), DEFAULT, ["format"], "("),
    "format and pattern": (text(format="regex", pattern="^a.$"), text(pattern="^a.$"), ["format"], "a("),
    "anyOf beside properties": (
        {**PAIR, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        PAIR,
        ["anyOf"],
        {},
    ),
    "oneOf beside properties": (
        {**PAIR, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
        PAIR,
        ["oneOf"],
        {"x": None, "y": None},
    ),
    "cases that only restrict": (
        {**STRING, "anyOf": [{"pattern": "^a"}, {"maxLength": 1}]},
        STRING,
        ["anyOf"],
        "bb",
    ),
    "keywords beside cases": (
        {"type": ["string", "null"], "minLength": 2, "anyOf": [STRING, NULL], "description": "d"},
        {"anyOf": [STRING, NULL], "description": "d"},
        ["type", "minLength"],
        "a",
    ),
    "oneOf": ({"oneOf": [STRING, {"const": "a"}]}, {"anyOf": [STRING, {"const": "a"}]}, ["oneOf"], "a"),
}  # fmt: skip


def derived(field):
    normal = normalise(label(field)).json_schema
    lint(normal)
    return normal, grammar_of(normal)


@pytest.mark.parametrize("name", MOVED)
def test_what_the_engine_cannot_constrain_is_moved_and_named(name):
    field, engine_gets, keywords, _ = MOVED[name]
    _, grammar_schema = derived(field)
    assert grammar_schema.schema["properties"]["a"] == engine_gets
    assert [re.match(r"\$\.a: `(\w+)` is checked after", line)[1] for line in grammar_schema.moved] == keywords


@pytest.mark.parametrize("name", [name for name in MOVED if MOVED[name][3] is not ...])
def test_what_was_moved_is_checked_after_generation(name):
    value = MOVED[name][3]
    normal, grammar_schema = derived(MOVED[name][0])
    assert Draft202012Validator(grammar_schema.schema).is_valid({"a": value})
    check = LabelCheck(LabelSpec(name="s", json_schema=normal, system_prompt="Label."))
    with pytest.raises(RowFinal) as caught:
        check.label(json.dumps({"a": value}))
    assert caught.value.code == Reason.SCHEMA_MISMATCH


@pytest.mark.parametrize("name", MOVED)
def test_the_backend_takes_what_is_left(name):
    _, grammar_schema = derived(MOVED[name][0])
    assert vllm_accepts(grammar_schema.schema)
    value = MOVED[name][3]
    assert value is ... or can_write(grammar(grammar_schema.schema), {"a": value})


def test_every_restriction_has_a_case():
    cases = {keyword for _, _, keywords, _ in MOVED.values() for keyword in keywords}
    assert cases >= RESTRICTIONS - {"patternProperties"}  # normalised away


@pytest.mark.parametrize(
    ("field", "line"),
    [
        (text(format="iri"), f"$.a: `format` ('iri') {DESCRIBES}"),
        ({"type": "integer", "format": "int64"}, f"$.a: `format` ('int64') {DESCRIBES}"),
        (text(maxLength=3, contentEncoding="base64"), f"$.a: `contentEncoding` ('base64') {DESCRIBES}"),
        (text(pattern="a"), f"$.a: `pattern` {AFTER} unless it stands alone, as ^(...)$"),
        (text(pattern="^(?=a)a$"), f"$.a: `pattern` {AFTER}"),
        ({"oneOf": [NULL, WHOLE]}, "$.a: `oneOf` is checked after generation: the engine takes it for `anyOf`"),
        ({"anyOf": [NULL, {**WHOLE, "multipleOf": 2}]}, f"$.a.anyOf[1]: `multipleOf` {AFTER}"),
        ({"type": "array", "items": {**WHOLE, "multipleOf": 2}}, f"$.a.items: `multipleOf` {AFTER}"),
    ],
)
def test_how_it_is_said(field, line):
    assert derived(field)[1].moved == (line,)


@pytest.mark.parametrize(
    "pattern",
    [
        "a", "^a", "a$", "^a|b$", "^(a|b)$|c", "^a\\$", "^a$b$", "^(^a)$", "^(a$)$", "a{x}", "{", "^a++$", "^a{1,2}+$",
        "",
        "^(?=a)a$", "^(?!a).$", "^(?<!a)b$", "^(?<=a)b$", "^(?i:a)$", "^(?s:a)$", "^(?>a)$", "^(?#c)a$",
        "^(?P<n>a)(?P=n)$",
        "^(a)\\1$", "^a\\b$", "\\Aa", "a\\Z", "^\\n$", "^\\t$", "^\\\\$", '^"$', "^\n$", "^\\u0022$",
        "^\\u005C$", "^\\u000a$",
        "^[]a]$", "^a{,3}$",
    ],
)  # fmt: skip
def test_a_pattern_that_the_backend_misreads_is_moved(pattern):
    normal, grammar_schema = derived(text(pattern=pattern))
    assert normal["properties"]["a"] == {**DEFAULT, "pattern": pattern}
    assert grammar_schema.schema["properties"]["a"] == DEFAULT


@pytest.mark.parametrize("pattern", ["^$", "^a$", "^(a|b)$", "^((a|b)c|d)$", "^[|^$]+$", "^a\\|b\\$$", "^[^a\\]^]$"])
def test_a_pattern_that_says_all_of_the_text_is_kept(pattern):
    assert derived(text(pattern=pattern))[1].moved == ()
    assert vllm_accepts(label(text(pattern=pattern)))


def test_listed_values_are_kept_alone():
    # The linter has checked them against what stands beside them.
    field = text(enum=["ab", "cd"], minLength=1, pattern="^.b|^c", format="x", **{"not": {"const": "e"}})
    _, grammar_schema = derived(field)
    assert grammar_schema.schema["properties"]["a"] == text(enum=["ab", "cd"])
    assert grammar_schema.moved == ()


def test_values_and_names_that_look_like_keywords_stay():
    schema = {"type": "object", "properties": {name: {"const": {name: 1}} for name in sorted(RESTRICTIONS)}}
    assert grammar_of(schema).schema == schema


def test_the_label_schema_is_not_changed_and_the_bytes_are_the_same_each_time():
    schema = normalise(label({**WHOLE, "multipleOf": 5})).json_schema
    before = json.dumps(schema)
    texts = {json.dumps(grammar_of(json.loads(before)).schema) for _ in range(3)} | {
        json.dumps(grammar_of(schema).schema)
    }
    assert len(texts) == 1
    assert json.dumps(schema) == before


@pytest.mark.parametrize("name", builtin_names())
def test_nothing_of_the_built_in_schemas_is_moved(name):
    spec, _ = load_label_spec(name)
    assert spec.grammar.schema == spec.json_schema
    assert spec.grammar.moved == ()


def test_the_budget_counts_a_length_that_gave_way_to_a_format():
    # The full schema bounds what is valid, so the budget follows it.
    normal, grammar_schema = derived(text(format="uri", maxLength=2083))
    assert "maxLength" not in grammar_schema.schema["properties"]["a"]
    assert max_output_tokens(normal) > 2083


# -- pydantic ---------------------------------------------------------------------------------------------------------


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: conint(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: set[Literal["sit", "roll"]]


class Zoo(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    other: Annotated[Cat | Dog, Field(discriminator="kind")] | None
    price: conint(multiple_of=5, ge=0, le=100)
    code: constr(pattern=r"^[A-Z]+$", max_length=4)
    name: constr(pattern=r"[a-z]")
    tags: conlist(str, max_length=2)
    words: frozenset[str] | None = None
    home: HttpUrl
    secret: bytes


GOOD = {
    "pet": {"kind": "cat", "lives": 9},
    "other": {"kind": "dog", "tricks": ["sit"]},
    "price": 15,
    "code": "AB",
    "name": "Ann",
    "tags": [],
    "words": None,
    "home": "https://example.se/",
    "secret": "x",
}


@pytest.fixture
def zoo():
    normal = normalise(Zoo.model_json_schema()).json_schema
    lint(normal)
    return LabelSpec(name="zoo", json_schema=normal, system_prompt="Label.")


def test_a_pydantic_class_with_all_of_it(zoo):
    assert vllm_accepts(zoo.grammar.schema)
    assert can_write(grammar(zoo.grammar.schema), GOOD)
    assert LabelCheck(zoo).label(json.dumps(GOOD)) == GOOD
    assert [line.partition(" is ")[0] for line in zoo.grammar.moved if " only " not in line] == [
        "$.pet.oneOf[1].tricks: `uniqueItems`",
        "$.pet: `oneOf`",
        "$.other.anyOf[0].oneOf[1].tricks: `uniqueItems`",
        "$.other.anyOf[0]: `oneOf`",
        "$.price: `multipleOf`",
        "$.code: `pattern`",
        "$.name: `pattern`",
        "$.words.anyOf[0]: `uniqueItems`",
        "$.home: `maxLength`",
        "$.home: `minLength`",
    ]
    assert f"$.secret: `format` ('binary') {DESCRIBES}" in zoo.grammar.moved
    assert "discriminator" not in zoo.schema_text
    assert json.loads(zoo.schema_text) == zoo.grammar.schema != zoo.json_schema


@pytest.mark.parametrize(
    "change",
    [
        {"pet": {"kind": "dog", "tricks": ["sit", "sit"]}},
        {"price": 7},
        {"code": "ab"},
        {"name": "ANN"},
        {"words": ["a", "a"]},
        {"home": "https://example.se/" + "x" * 2083},
    ],
    ids=str,
)
def test_a_label_that_breaks_what_was_moved_can_be_written_and_is_a_schema_mismatch(zoo, change):
    wrong = {**GOOD, **change}
    assert can_write(grammar(zoo.grammar.schema), wrong)
    with pytest.raises(RowFinal) as caught:
        LabelCheck(zoo).label(json.dumps(wrong))
    assert caught.value.code == Reason.SCHEMA_MISMATCH


def test_the_stub_answers_a_discriminated_union(zoo):
    assert json.loads(plain_label_text(zoo.schema_text))["pet"] == {"kind": "cat", "lives": 0}


# -- any schema -------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("xyz")
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 6, 10, 2.5, "", "a", "ab", "aab", "2024-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
HINTS = st.fixed_dictionaries(
    {},
    optional={
        "multipleOf": st.sampled_from([2, 5]),
        "uniqueItems": st.just(True),
        "contains": st.sampled_from([{"type": "null"}, {"const": 1}]),
        "maxContains": st.just(1),
        "propertyNames": st.sampled_from([{"const": "x"}, {"maxLength": 1}]),
        "patternProperties": st.just({"^[xz]$": {"minimum": 1}}),
        "dependentRequired": st.just({"x": ["y"]}),
        "not": VALUES.map(lambda value: {"const": value}),
        "if": st.just({"minLength": 2}),
        "then": st.just({"pattern": "^a"}),
        "allOf": st.lists(
            st.sampled_from([{"multipleOf": 3}, {"not": {"const": 6}}, {"if": {}, "else": {}}]), min_size=1, max_size=3
        ),
        "pattern": st.sampled_from(["^a+$", "b", "^a|b$"]),
        "format": st.sampled_from(["date", "regex", "iri"]),
        "minLength": st.just(1),
        "maxLength": st.sampled_from([2, 9]),
        "anyOf": st.just([{"type": "string"}, {"minimum": 3}, {"required": ["x"]}, {"maxItems": 1}]),
        "description": st.just("d"),
    },
)
LEAVES = st.one_of(
    st.sampled_from(["string", "null", "boolean", "integer", "number"]).map(lambda kind: {"type": kind}),
    st.just({"type": ["string", "null"]}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


def larger(inner):
    shapes = st.one_of(
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda named: {"type": "object", "properties": named}
        ),
        inner.map(lambda item: {"type": "array", "items": item}),
        st.lists(inner, min_size=1, max_size=2).map(lambda items: {"type": "array", "prefixItems": items}),
        st.lists(inner, min_size=1, max_size=2).map(lambda cases: {"anyOf": cases}),
        st.lists(inner, min_size=1, max_size=2).map(lambda cases: {"oneOf": cases}),
    )
    return st.tuples(HINTS, shapes).map(lambda pair: {**pair[0], **pair[1]})


FIELDS = st.recursive(st.tuples(HINTS, LEAVES).map(lambda pair: {**pair[0], **pair[1]}), larger, max_leaves=4)


@settings(max_examples=300, deadline=None)
@given(FIELDS, st.lists(VALUES, min_size=10, max_size=40))
def test_a_value_that_the_label_schema_allows_the_grammar_schema_allows(field, values):
    normal = normalise(label(field)).json_schema
    widened = Draft202012Validator(grammar_of(normal).schema)
    full = Draft202012Validator(normal)
    assert [value for value in values if full.is_valid({"a": value}) and not widened.is_valid({"a": value})] == []


@settings(max_examples=200, deadline=None)
@given(FIELDS)
def test_normalising_and_deriving_again_change_nothing(field):
    once = normalise(label(field)).json_schema
    assert normalise(once).json_schema == once
    derived = grammar_of(once)
    assert json.dumps(grammar_of(once).schema) == json.dumps(derived.schema)
    assert grammar_of(derived.schema).moved == ()


@settings(max_examples=200, deadline=None)
@given(FIELDS)
def test_the_backend_takes_what_the_linter_passes(field):
    normal = normalise(label(field)).json_schema
    try:
        lint(normal)
    except UsageError:
        return
    assert vllm_accepts(grammar_of(normal).schema)
