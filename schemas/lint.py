"""What the structured-output backend can't constrain: path, keyword and remedy, said before anything runs."""

import re
from collections.abc import Iterator
from math import inf
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from schemas.errors import UsageError
from schemas.jsontext import nested_over

#: Keywords that xgrammar ignores (tried with 0.2.8), or that vLLM refuses though xgrammar has them.
UNSUPPORTED = {
    "multipleOf": "drop it and check the multiple in a query",
    "uniqueItems": "drop it: duplicates can be removed in a query",
    "contains": "drop it and use `items`",
    "minContains": "drop it and use `minItems`",
    "maxContains": "drop it and use `maxItems`",
    "patternProperties": "name the properties",
    "propertyNames": "name the properties",
    "unevaluatedProperties": "use `additionalProperties: false`",
    "unevaluatedItems": "use `items`",
    "dependentSchemas": "use `anyOf` of two objects",
    "dependentRequired": "use `anyOf` of two objects",
    "not": "list what is allowed with `enum`",
    "if": "use `anyOf` of the two cases",
    "then": "use `anyOf` of the two cases",
    "else": "use `anyOf` of the two cases",
    "oneOf": "use `anyOf` (pydantic: leave out the discriminator)",
    "contentEncoding": "drop it",
    "$dynamicRef": "use `$ref` into $defs",
}

#: Formats that the backend has a grammar for. Not the two JSON pointers: their grammar lets quotes through, so that the
#: output is no JSON.
FORMATS = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template",
}  # fmt: skip

#: Levels of objects and arrays in a schema; vLLM refuses more.
MAX_NESTING = 64
#: Largest bound of an integer, and of a length or a count.
MAX_INTEGER = 2**63 - 1
MAX_COUNT = 2**31 - 1

_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_LIST_KEYS = ("anyOf", "allOf", "prefixItems")
_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

#: The parts of a pattern that need a look: escapes, groups with a question mark, braces, quotes and control characters.
_PATTERN_PARTS = re.compile(r'\\u[0-9a-fA-F]{4}|\\.|\(\?P?.|\{[^}]*\}?|\[\^?\]|["\x00-\x1f]', re.DOTALL)
#: Those that the backend keeps. The others it refuses, ignores, or writes into a JSON string as they are.
_PATTERN_KEPT = re.compile(r"\\u[0-9a-fA-F]{4}|\\[dDwWsS]|\\[^\w\s\"\\]|\(\?(:|P<)|\{\d+(,\d*)?\}")


def require_json_schema(schema: dict[str, Any]) -> None:
    """Check that it is a JSON Schema of a depth that can be walked.

    :raises UsageError: names the place.
    """
    if nested_over(schema, MAX_NESTING):
        raise UsageError(f"$: nested over {MAX_NESTING} levels: flatten it")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = "$" + "".join(f".{part}" for part in error.absolute_path)
        raise UsageError(f"not a JSON Schema: {path}: {error.message}") from None


def lint(schema: dict[str, Any]) -> None:
    """Check a normalised label schema.

    :raises UsageError: with every finding as ``path: keyword: remedy``.
    """
    require_json_schema(schema)
    findings: list[str] = []
    _walk(schema, "$", findings)
    if findings:
        raise UsageError("the engine can't constrain this label schema: " + "; ".join(findings))


def _walk(schema: Any, path: str, findings: list[str]) -> None:
    if schema is True or schema == {}:
        findings.append(f"{path}: allows any value: give it a `type`")
    elif schema is False:
        findings.append(f"{path}: allows no value: leave it out")
    if not isinstance(schema, dict):
        return
    findings.extend(
        f"{path}: `{keyword}` is not supported: {remedy}"
        for keyword, remedy in UNSUPPORTED.items()
        if keyword in schema
    )
    for check in (_shape, _string, _numbers, _counts):
        findings.extend(f"{path}: {finding}" for finding in check(schema, _kinds(schema)))
    for name, item in schema.get("properties", {}).items():
        _walk(item, f"{path}.{name}", findings)
    for key in _LIST_KEYS:
        for n, item in enumerate(schema.get(key, [])):
            _walk(item, f"{path}.{key}[{n}]", findings)
    if schema.get("items", False) is not False:
        _walk(schema["items"], f"{path}.items", findings)


def _kinds(schema: dict[str, Any]) -> set[str]:
    kind = schema.get("type", [])
    return set(kind) if isinstance(kind, list) else {kind}


def _shape(schema: dict[str, Any], kinds: set[str]) -> Iterator[str]:
    if not schema.keys() & {"type", "enum", "const", "anyOf", "allOf"}:
        yield "allows any value: give it a `type`, an `enum` or a `const`"
    if "object" in kinds and "properties" not in schema:
        yield "an object without `properties` has no bound: name them"
    unnamed = [name for name in schema.get("required", []) if name not in schema.get("properties", {})]
    if unnamed:
        yield f"`required` names {', '.join(unnamed)}, which `properties` lacks: add it there or drop it here"
    if "array" in kinds and not schema.keys() & {"items", "prefixItems"}:
        yield "an array without `items` allows any value: give it `items`"
    if len(schema.get("allOf", [])) > 1:
        yield "`allOf` of several parts is not supported: merge them into one"
    ignored = sorted(schema.keys() & Draft202012Validator.VALIDATORS.keys() - {"anyOf"})
    if "anyOf" in schema and ignored:
        yield f"`{'`, `'.join(ignored)}` beside `anyOf` is not supported: move it into each of the cases"
    if schema.get("enum") == []:
        yield "an empty `enum` allows no value: list at least one"
    # The backend looks at nothing beside them.
    rest = Draft202012Validator({key: item for key, item in schema.items() if key not in ("enum", "const", "pattern")})
    for keyword in ("enum", "const"):
        for value in schema.get("enum", []) if keyword == "enum" else [schema["const"]] if "const" in schema else []:
            if not rest.is_valid(value):
                yield f"the value {value!r} of `{keyword}` breaks the keywords beside it: drop one of them"


def _string(schema: dict[str, Any], _kinds: set[str]) -> Iterator[str]:
    shape = schema.get("format")
    if shape is not None and shape not in FORMATS:
        yield f"unknown `format` {shape!r}: use one of {', '.join(sorted(FORMATS))}, or none"
    for keyword in ("pattern", "format"):
        if keyword in schema and schema.keys() & {"minLength", "maxLength"}:
            yield (
                f"`{keyword}` together with minLength or maxLength is not supported: "
                "put the length into a pattern, as in ^[a-z]{1,20}$"
            )
    if "pattern" in schema and shape is not None:
        yield "`pattern` together with `format` is not supported: keep one"
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except re.error as error:
            yield f"`pattern` is no regular expression: {error}"
            return
        bad = [part for part in _PATTERN_PARTS.findall(schema["pattern"]) if not _PATTERN_KEPT.fullmatch(part)]
        if bad:
            yield f"`pattern` with {', '.join(map(repr, bad))} is not supported: use plain classes, groups and counts"


def _numbers(schema: dict[str, Any], kinds: set[str]) -> Iterator[str]:
    given = {keyword: schema[keyword] for keyword in _LIMITS if keyword in schema}
    for keyword, value in given.items():
        if not abs(value) <= MAX_INTEGER:  # NaN too
            yield f"`{keyword}` is beyond 64 bits: choose a smaller one"
        elif "integer" in kinds and value != int(value):
            yield f"`{keyword}` of an integer is no whole number: round it"
    step = 1 if kinds & {"integer"} else 0
    low = max(given.get("minimum", -inf), given.get("exclusiveMinimum", -inf) + step)
    high = min(given.get("maximum", inf), given.get("exclusiveMaximum", inf) - step)
    shut = not step and low == high and (low == given.get("exclusiveMinimum") or high == given.get("exclusiveMaximum"))
    if low > high or shut:
        yield "no number lies between its limits (`minimum`, `maximum` and their like): widen them"


def _counts(schema: dict[str, Any], _kinds: set[str]) -> Iterator[str]:
    for low, high in _COUNTS:
        for keyword in (low, high):
            value = schema.get(keyword, 0)
            if not isinstance(value, int) or value > MAX_COUNT:
                yield f"`{keyword}` must be a whole number up to {MAX_COUNT}"
        if schema.get(low, 0) > schema.get(high, inf):
            yield f"`{low}` is above `{high}`, so no value fits: swap them"
    if schema.get("minProperties", 0) > len(schema.get("properties", {})):
        yield "`minProperties` is above the number of `properties`: lower it"
    if schema.get("maxProperties", inf) < len(schema.get("required", [])):
        yield "`maxProperties` is below the number of `required` properties: raise it"
    first = len(schema.get("prefixItems", []))
    if first and schema.get("maxItems", first) < first:
        yield "`maxItems` is below the number of `prefixItems`: raise it"
    if first and not isinstance(schema.get("items"), dict) and schema.get("minItems", 0) > first:
        yield "`minItems` is above the number of `prefixItems`: lower it"
