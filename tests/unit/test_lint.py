import json

import pytest
from backend import can_write, grammar, vllm_accepts, writer

from schemas.budget import max_output_tokens
from schemas.errors import UsageError
from schemas.grammar import FORMATS, RESTRICTIONS
from schemas.label_spec import builtin_names, load_label_spec
from schemas.lint import MAX_COUNT, MAX_INTEGER, MAX_NESTING, lint, structured_path
from schemas.normalise import MAX_EXACT_INTEGER, normalise

STRING = {"type": "string", "maxLength": 9}
NULL = {"type": "null"}
CLOSED = {"type": "object", "properties": {"k": NULL}, "required": ["k"], "additionalProperties": False}
PAIR = {"type": "array", "prefixItems": [STRING, NULL], "items": False}


def label(field):
    """A label schema whose one field is ``field``."""
    return {"type": "object", "properties": {"a": field}, "required": ["a"], "additionalProperties": False}


def nested(levels):
    schema = NULL
    for _ in range(levels):
        schema = label(schema)
    return schema


def optional(**more):
    return {"type": "object", "properties": {"x": NULL, "y": NULL}, "additionalProperties": False, **more}


def text(pattern):
    return {"type": "string", "pattern": pattern}


def whole(**limits):
    return {"type": "integer", **limits}


def number(**limits):
    return {"type": "number", **limits}


SAMPLES = {
    "email": "a@example.se",
    "date": "2024-02-29",
    "time": "10:00:00Z",
    "date-time": "2024-02-29T10:00:00Z",
    "duration": "P1D",
    "ipv4": "192.0.2.1",
    "ipv6": "::1",
    "hostname": "example.se",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "uri": "https://example.se/x?y=1#z",
    "uri-reference": "/x?y=1",
    "uri-template": "/x/{y}",
}

#: name: field, values that the engine must be able to write, values that it must not.
SUPPORTED = {
    "string": (STRING, ["", "å中😀", "a" * 9], ["a" * 10, 1, None]),
    "string min": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    "string long": ({"type": "string", "maxLength": 20_000}, ["a" * 20_000], ["a" * 20_001]),
    "boolean": ({"type": "boolean"}, [True, False], [None, 0, "true"]),
    "null": (NULL, [None], [0, ""]),
    "enum swedish": ({"enum": ["blå", "grön", "röd"]}, ["blå", "röd"], ["blå ", "bla", "gul"]),
    "enum chinese": ({"enum": ["正面", "负面"]}, ["正面"], ["正", "中性"]),
    "enum arabic": ({"enum": ["إيجابي", "سلبي"]}, ["سلبي"], ["سلبي "]),
    "enum emoji": ({"enum": ["😀", "👩‍🔬", "🇸🇪"]}, ["👩‍🔬", "🇸🇪"], ["👩", "😎"]),
    "enum quotes": ({"enum": ['say "so"', "back\\slash", "a/b"]}, ['say "so"', "back\\slash", "a/b"], ["a\\/b "]),
    "enum mixed": ({"enum": ["a", 1, -3, True, None]}, ["a", 1, -3, True, None], ["b", 2, False]),
    "enum typed": ({"type": "string", "enum": ["a", "b"]}, ["a"], ["c"]),
    "const": ({"const": "日本"}, ["日本"], ["日"]),
    "const number": ({"const": 7}, [7], [8, "7"]),
    "any of null": ({"anyOf": [STRING, NULL]}, ["x", None], [1]),
    "any of described": ({"anyOf": [STRING, NULL], "description": "d"}, ["x", None], [1]),
    "any of objects": ({"anyOf": [CLOSED, label(STRING)]}, [{"k": None}, {"a": "x"}], [{"k": "x"}, {}]),
    "type list": ({"type": ["string", "null"], "maxLength": 3}, ["abc", None], ["abcd", 1]),
    "array": ({"type": "array", "items": STRING, "maxItems": 2}, [[], ["a"], ["a", "b"]], [["a"] * 3, "a", [1]]),
    "array min": ({"type": "array", "items": NULL, "minItems": 1, "maxItems": 2}, [[None]], [[], [None] * 3]),
    "array of arrays": (
        {"type": "array", "items": {"type": "array", "items": NULL, "maxItems": 1}, "maxItems": 2},
        [[[], [None]]],
        [[[None, None]]],
    ),
    "tuple": ({**PAIR, "minItems": 2, "maxItems": 2}, [["a", None]], [["a"], [None, "a"], ["a", None, None]]),
    "tuple open": ({**PAIR, "items": NULL, "maxItems": 3}, [["a", None, None]], [["a", None, None, None]]),
    "object": (CLOSED, [{"k": None}], [{}, {"k": 1}, {"k": None, "z": None}]),
    "object optional": (optional(), [{}, {"y": None}, {"x": None, "y": None}], [{"y": None, "x": None}]),
    "object empty": ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": None}]),
    "object count": (
        optional(minProperties=1, maxProperties=1),
        [{"x": None}, {"y": None}],
        [{}, {"x": None, "y": None}],
    ),
    "object unicode": (
        {"type": "object", "properties": {"größe/量": NULL}, "required": ["größe/量"], "additionalProperties": False},
        [{"größe/量": None}],
        [{}],
    ),
    "integer": (
        whole(minimum=-MAX_EXACT_INTEGER, maximum=MAX_EXACT_INTEGER),
        [0, -1, MAX_EXACT_INTEGER, -MAX_EXACT_INTEGER],
        [MAX_EXACT_INTEGER + 1, -MAX_EXACT_INTEGER - 1, 1.5, "1"],
    ),
    # vllm#43920: such a bound once killed the engine.
    "integer 20 billion": (whole(minimum=0, maximum=20_000_000_000), [20_000_000_000], [20_000_000_001, -1]),
    "integer 64 bit": (whole(minimum=-MAX_INTEGER, maximum=MAX_INTEGER), [MAX_INTEGER], [MAX_INTEGER + 1]),
    "integer exclusive": (whole(exclusiveMinimum=0, exclusiveMaximum=10), [1, 9], [0, 10]),
    "integer whole float": (whole(minimum=1.0, maximum=3.0), [1, 3], [0, 4]),
    "number": (number(), [0, -1.5, 1e300, 5e-324], ["1"]),
    "number range": (number(minimum=0, maximum=1), [0, 0.25, 1], [-0.1, 1.1, 2]),
    "number negative": (number(minimum=-1.5, maximum=2.5), [-1.5, 0, 2.5], [-1.6, 2.6]),
    "number exclusive": (number(exclusiveMinimum=0, exclusiveMaximum=1), [0.5, 0.001], [0, 1]),
    "number fixed": (number(minimum=3, maximum=3), [3], [4]),
    "pattern": (text("^[A-Z]{2}-\\d+$"), ["AB-1"], ["AB-", "ab-1"]),
    "pattern groups": (text("^(?:ab|c)+(?P<n>x)?$"), ["abc", "cx"], ["x", "a"]),
    "pattern counts": (text("^[^,]{1,500}$"), ["a" * 500, "中"], ["a" * 501, "a,b", ""]),
    "pattern unicode": (text("^[åäö\\u4e00-\\u9fff]+$"), ["åä中"], ["a"]),
    "pattern escapes": (text("^\\w+\\s\\S\\.\\-\\/$"), ["a x.-/"], ["a"]),
    **{f"format {name}": ({"type": "string", "format": name}, [sample], ["\n"]) for name, sample in SAMPLES.items()},
}

#: name: field, words of the finding.
REFUSED = {
    "any of beside object": ({**CLOSED, "anyOf": [{"required": ["z"]}, {"required": ["k"]}]}, "`anyOf.0.` names z"),
    "then asks for the unknown": (optional(**{"if": {}, "then": {"required": ["z"]}}), "`then` names z"),
    "only a restriction": ({"not": {"type": "string"}}, "allows any value"),
    "enum against a restriction": (whole(enum=[5, 7], multipleOf=5), "value 7 of `enum`"),
    "enum against a pattern": ({"enum": ["a", "b"], "pattern": "^a$"}, "value 'b' of `enum`"),
    "enum of another type": ({"type": "string", "enum": ["a", 1]}, "value 1 of `enum`"),
    "const of another type": ({"type": "string", "const": None}, "value None of `const`"),
    "enum beyond length": ({"enum": ["a", "abcd"], "maxLength": 3}, "value 'abcd' of `enum`"),
    "enum empty": ({"enum": []}, "empty `enum`"),
    "any": ({}, "allows any value"),
    "true": (True, "allows any value"),
    "false": (False, "allows no value"),
    "described only": ({"description": "d"}, "allows any value"),
    "object open": ({"type": "object"}, "without `properties`"),
    "object or null open": ({"type": ["object", "null"]}, "without `properties`"),
    "array open": ({"type": "array", "maxItems": 2}, "without `items`"),
    "array or null open": ({"type": ["array", "null"], "maxItems": 2}, "without `items`"),
    "required unknown": (optional(required=["x", "z"]), "`required` names z"),
    "integer beyond 64 bit": (whole(minimum=0, maximum=10**20), "`maximum` is beyond 64 bits"),
    "integer below 64 bit": (whole(minimum=-(10**20)), "`minimum` is beyond 64 bits"),
    "integer half": (whole(minimum=0.5), "`minimum` of an integer is no whole number"),
    "integer range swapped": (whole(minimum=10, maximum=9), "no number lies between"),
    "integer range shut": (whole(exclusiveMinimum=0, exclusiveMaximum=1), "no number lies between"),
    "number range swapped": (number(minimum=1, maximum=0.5), "no number lies between"),
    "number range shut": (number(exclusiveMinimum=1, maximum=1), "no number lies between"),
    "number huge": (number(maximum=1e300), "`maximum` is beyond"),
    "number not a number": (number(maximum=float("nan")), "`maximum` is beyond"),
    "length swapped": ({"type": "string", "minLength": 3, "maxLength": 1}, "`minLength` is above `maxLength`"),
    "length huge": ({"type": "string", "maxLength": MAX_COUNT + 1}, "`maxLength` must be a whole number"),
    "length a float": ({"type": "string", "maxLength": 3.0}, "`maxLength` must be a whole number"),
    "items swapped": ({"type": "array", "items": NULL, "minItems": 3, "maxItems": 1}, "`minItems` is above"),
    "properties swapped": (optional(minProperties=2, maxProperties=1), "`minProperties` is above `maxProperties`"),
    "properties too many": (optional(minProperties=3), "`minProperties` is above the number"),
    "properties too few": (optional(maxProperties=1, required=["x", "y"]), "`maxProperties` is below"),
    "tuple cut": ({**PAIR, "maxItems": 1}, "`maxItems` is below the number of `prefixItems`"),
    "tuple too long": ({**PAIR, "minItems": 3, "maxItems": 3}, "`minItems` is above the number of `prefixItems`"),
    **{
        f"pattern {pattern}": (text(pattern), "`pattern`")
        for pattern in (
            "[", "^(", ")", "*", "+", "a**", "a{2,1}", "\\", "[z-a]", "[]", "(?<n>a)", "\\p{L}",
        )
    },
}  # fmt: skip

#: Refused by us because the output would break its schema, though the backend takes the schema.
NOT_ENFORCED = {"enum of another type", "const of another type", "enum beyond length", "required unknown"}


@pytest.mark.parametrize("name", SUPPORTED)
def test_what_the_engine_can_constrain_passes(name):
    lint(label(SUPPORTED[name][0]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_cannot_constrain_is_refused_with_path_and_keyword(name):
    field, finding = REFUSED[name]
    with pytest.raises(UsageError, match=rf"\$\.(a: .*{finding}|properties\.a\.)"):
        lint(label(field))


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda field: {"anyOf": [NULL, field]}, r"\$\.a\.anyOf\[1\]"),
        (lambda field: {"type": "array", "items": field, "maxItems": 1}, r"\$\.a\.items"),
        (lambda field: {"type": "array", "prefixItems": [field], "items": False}, r"\$\.a\.prefixItems\[0\]"),
        (lambda field: {"oneOf": [NULL, field]}, r"\$\.a\.oneOf\[1\]"),
        (label, r"\$\.a\.a"),
    ],
)
def test_findings_inside_other_schemas_are_named_by_their_path(wrap, path):
    with pytest.raises(UsageError, match=rf"{path}: an empty `enum` allows no value"):
        lint(label(wrap({"enum": []})))


def test_every_finding_is_said_at_once():
    schema = label(whole(minimum=2, maximum=1))
    schema["properties"]["b"] = {"type": "object"}
    with pytest.raises(UsageError, match=r"\$\.a: no number lies.*; \$\.b: an object without"):
        lint(schema)


def test_a_property_named_like_a_keyword_is_fine():
    lint({"type": "object", "properties": dict.fromkeys(RESTRICTIONS, NULL), "additionalProperties": False})


def test_values_of_enum_that_look_like_keywords_are_fine():
    lint(label({"enum": [*sorted(RESTRICTIONS), {"not": 1}]}))


def test_every_format_is_in_the_table():
    assert SAMPLES.keys() == FORMATS


@pytest.mark.parametrize("schema", [{"type": "text"}, {"properties": []}, {"type": "object", "required": "a"}])
def test_what_is_no_json_schema_is_refused_with_its_place(schema):
    with pytest.raises(UsageError, match=r"not a JSON Schema: \$\."):
        lint(schema)


@pytest.mark.parametrize("levels", [MAX_NESTING // 2, 5000])
def test_deep_nesting_is_refused(levels):
    with pytest.raises(UsageError, match="nested over"):
        lint(nested(levels))


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_schemas_pass(name):
    spec, _ = load_label_spec(name)
    lint(spec.json_schema)
    assert max_output_tokens(spec.json_schema) > 0


# -- against the backend itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_backend_enforces_what_passes(name):
    field, good, bad = SUPPORTED[name]
    compiled = grammar(label(field))
    assert [value for value in good if not can_write(compiled, {"a": value})] == []
    assert [value for value in bad if can_write(compiled, {"a": value})] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_formats_let_no_character_through_that_breaks_json(name):
    writes = writer(grammar({"type": "string", "format": name}))
    sample = SAMPLES[name]
    texts = [
        f'"{sample[:place]}{character}{sample[place:]}"'
        for place in range(len(sample) + 1)
        for character in '"\\\n\t\x01'
    ]
    assert [text for text in texts if writes(text)] == []


def test_the_engine_cannot_write_escapes_into_a_bounded_string():
    # The token budget counts six bytes a character: an escaped pair would take twelve.
    assert not writer(grammar({"type": "string", "maxLength": 1}))('"\\ud83d\\ude00"')


@pytest.mark.parametrize("name", SUPPORTED)
def test_vllm_accepts_what_passes(name):
    assert vllm_accepts(label(SUPPORTED[name][0]))


def test_vllm_accepts_the_deepest_schema_that_passes():
    deepest = MAX_NESTING // 2 - 1
    lint(nested(deepest))
    assert vllm_accepts(nested(deepest))
    assert not vllm_accepts(nested(deepest + 1))


@pytest.mark.parametrize("name", [*REFUSED, *SUPPORTED])
def test_what_vllm_refuses_the_linter_refuses(name):
    field = (REFUSED.get(name) or SUPPORTED[name])[0]
    try:
        lint(label(field))
    except UsageError:
        refused = True
    else:
        refused = False
    assert refused or vllm_accepts(label(field))


@pytest.mark.parametrize("name", sorted(NOT_ENFORCED))
def test_vllm_takes_what_it_does_not_enforce_so_the_linter_must_not(name):
    # When this fails, the backend has learned to refuse or to enforce it: look whether the linter can let it pass.
    assert vllm_accepts(label(REFUSED[name][0]))


@pytest.mark.parametrize("name", builtin_names())
def test_vllm_accepts_the_built_in_schemas(name):
    spec, _ = load_label_spec(name)
    assert vllm_accepts(json.loads(spec.schema_text))
    assert normalise(spec.json_schema).notes == ()


def test_the_way_of_a_schema_is_said_with_the_reason():
    inside = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    assert structured_path(inside) == "decoder"
    for field, reason in [
        ({"type": "string", "format": "uri"}, "$.a: `format` 'uri'"),
        ({"type": "string", "pattern": "^a+$"}, "$.a: `pattern`"),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": False}, "$.a: `prefixItems`"),
        ({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "number"}]}, "$.a: alternatives that"),
        ({"type": "number", "maximum": 0.1234567890123456789}, "$.a: a limit of more than 15 digits"),
        ({"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2000}, "$.a.items: more than 1000"),
        ({"type": "array", "items": {"enum": ["x" * 9]}, "maxItems": 9000}, "$: more than 50000 states"),
        ({"type": "object", "properties": {"b": {"type": "null"}}, "minProperties": 1}, "$.a: `minProperties`"),
    ]:
        way = structured_path({"type": "object", "properties": {"a": field}})
        assert way.startswith(f"grammar backend ({reason}"), way
