"""What no grammar can be made of: path, keyword and remedy, said before anything runs."""

from collections.abc import Collection, Iterator
from math import inf
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from schemas.automaton import OutsideSubset, automaton_of
from schemas.errors import UsageError
from schemas.grammar import cases_of, is_fixed, left_out, parts
from schemas.jsontext import nested_over

#: Levels of objects and arrays in a schema; vLLM refuses more.
MAX_NESTING = 64
#: Largest bound of an integer, and of a length or a count.
MAX_INTEGER = 2**63 - 1
MAX_COUNT = 2**31 - 1

_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


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
    """Check that the backend takes the grammar schema of a normalised label schema, and bounds what it generates.

    :raises UsageError: with every finding as ``path: finding: remedy``.
    """
    require_json_schema(schema)
    findings: list[str] = []
    _walk(schema, "$", findings)
    if findings:
        raise UsageError("the engine can't constrain this label schema: " + "; ".join(findings))


def structured_path(grammar_schema: dict[str, Any]) -> str:
    """Which way the vllm engine's output is held to a label schema: the decoder, or the grammar backend and why."""
    try:
        automaton_of(grammar_schema)
    except OutsideSubset as reason:
        return f"grammar backend ({reason})"
    return "decoder"


def _walk(schema: Any, path: str, findings: list[str]) -> None:
    if schema is True or schema == {}:
        findings.append(f"{path}: allows any value: give it a `type`")
    elif schema is False:
        findings.append(f"{path}: allows no value: leave it out")
    if not isinstance(schema, dict):
        return
    out = left_out(schema)
    held = {key: item for key, item in schema.items() if key not in out}
    kind = [] if is_fixed(schema) else held.get("type", [])
    kinds = set(kind) if isinstance(kind, list) else {kind}
    for check in (_shape, _numbers, _counts):
        findings.extend(f"{path}: {finding}" for finding in check(held, kinds))
    findings.extend(f"{path}: {finding}" for finding in (*_values(schema), *_names(schema)))
    for where, part in parts(schema):
        _walk(part, path + where, findings)


def _shape(schema: dict[str, Any], kinds: set[str]) -> Iterator[str]:
    if not schema.keys() & {"type", "enum", "const", "anyOf", "oneOf"}:
        yield "allows any value: give it a `type`, an `enum` or a `const`"
    if "object" in kinds and "properties" not in schema:
        yield "an object without `properties` has no bound: name them"
    if "array" in kinds and not schema.keys() & {"items", "prefixItems"}:
        yield "an array without `items` allows any value: give it `items`"


def _values(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("enum") == []:
        yield "an empty `enum` allows no value: list at least one"
    # What stands beside them is left out of the grammar, so every value must keep to it.
    beside = {key: item for key, item in schema.items() if key not in ("enum", "const")}
    rest = Draft202012Validator(beside, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for keyword in ("enum", "const"):
        for value in schema.get("enum", []) if keyword == "enum" else [schema["const"]] if "const" in schema else []:
            if not rest.is_valid(value):
                yield f"the value {value!r} of `{keyword}` breaks the keywords beside it: drop one of them"


def _names(schema: dict[str, Any]) -> Iterator[str]:
    """Fields that something asks for and that no label can have, because objects are closed."""
    if is_fixed(schema) or cases_of(schema):
        return
    named = schema.get("properties", {}).keys()
    yield from _unnamed("`required`", schema, named)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for n, case in enumerate(schema.get(keyword, [])):
            yield from _unnamed(f"`{keyword}[{n}]`", case, named)
    for keyword in ("if", "then", "else"):
        yield from _unnamed(f"`{keyword}`", schema.get(keyword), named)


def _unnamed(where: str, schema: Any, named: Collection[str]) -> Iterator[str]:
    asked = schema.get("required", []) if isinstance(schema, dict) else []
    unnamed = [name for name in asked if name not in named]
    if unnamed:
        yield f"{where} names {', '.join(unnamed)}, which `properties` lacks: add it there or drop it here"


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
