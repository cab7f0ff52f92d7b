"""What the structured-output backend can't constrain: path, keyword and remedy, said before anything runs."""

from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from schemas.errors import UsageError

#: Keywords that xgrammar refuses or ignores (docs of 0.2, and vLLM's own check of the same list).
UNSUPPORTED = {
    "multipleOf": "drop it and check the multiple in a query",
    "uniqueItems": "drop it: duplicates can be removed in a query",
    "contains": "drop it and use `items`",
    "minContains": "drop it and use `minItems`",
    "maxContains": "drop it and use `maxItems`",
    "patternProperties": "name the properties",
    "propertyNames": "name the properties",
    "minProperties": "name the properties and list them in `required`",
    "maxProperties": "name the properties",
    "unevaluatedProperties": "use `additionalProperties: false`",
    "unevaluatedItems": "use `items`",
    "dependentSchemas": "use `anyOf` of two objects",
    "dependentRequired": "use `anyOf` of two objects",
    "not": "list what is allowed with `enum`",
    "if": "use `anyOf` of the two cases",
    "then": "use `anyOf` of the two cases",
    "else": "use `anyOf` of the two cases",
    "oneOf": "use `anyOf`",
    "contentEncoding": "drop it",
    "$dynamicRef": "use `$ref` into $defs",
}

#: Formats that the backend has a grammar for.
FORMATS = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
}  # fmt: skip

#: Levels of nesting: xgrammar stops at 64; nobody reads a column deeper than a few.
MAX_DEPTH = 32

_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_LIST_KEYS = ("anyOf", "allOf", "prefixItems")


def lint(schema: dict[str, Any]) -> None:
    """Check a normalised label schema.

    :raises UsageError: with every finding as ``path: keyword: remedy``, one a line.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = "$" + "".join(f".{part}" for part in error.absolute_path)
        raise UsageError(f"not a JSON Schema: {path}: {error.message}") from None
    findings: list[str] = []
    _walk(schema, "$", 0, findings)
    if findings:
        raise UsageError("the engine can't constrain this label schema: " + "; ".join(findings))


def _walk(schema: Any, path: str, depth: int, findings: list[str]) -> None:
    if depth > MAX_DEPTH:
        findings.append(f"{path}: nested over {MAX_DEPTH} levels: flatten it")
        return
    if schema is True or schema == {}:
        findings.append(f"{path}: allows any value: give it a `type`")
        return
    if not isinstance(schema, dict):
        return
    findings.extend(
        f"{path}: `{keyword}` is not supported: {remedy}"
        for keyword, remedy in UNSUPPORTED.items()
        if keyword in schema
    )
    _check_node(schema, path, findings)
    for name, item in schema.get("properties", {}).items():
        _walk(item, f"{path}.{name}", depth + 1, findings)
    for key in _LIST_KEYS:
        for n, item in enumerate(schema.get(key, [])):
            _walk(item, f"{path}.{key}[{n}]", depth + 1, findings)
    if isinstance(schema.get("items"), dict | bool):
        _walk(schema["items"], f"{path}.items", depth + 1, findings)


def _check_node(schema: dict[str, Any], path: str, findings: list[str]) -> None:
    kind = schema.get("type")
    for one in kind if isinstance(kind, list) else [kind]:
        if one is not None and one not in _TYPES:
            findings.append(f"{path}: unknown type {one!r}: use one of {', '.join(sorted(_TYPES))}")
    if not {"type", "enum", "const", "anyOf", "allOf"} & schema.keys():
        findings.append(f"{path}: allows any value: give it a `type`, an `enum` or a `const`")
    if kind == "object" and "properties" not in schema:
        findings.append(f"{path}: an object without `properties` has no bound: name them")
    if kind == "array" and "items" not in schema and "prefixItems" not in schema:
        findings.append(f"{path}: an array without `items` allows any value: give it `items`")
    if len(schema.get("allOf", [])) > 1:
        findings.append(f"{path}: `allOf` of several parts is not supported: merge them into one")
    if schema.get("enum") == []:
        findings.append(f"{path}: an empty `enum` allows no value: list at least one")
    shape = schema.get("format")
    if shape is not None and shape not in FORMATS:
        findings.append(f"{path}: unknown `format` {shape!r}: use one of {', '.join(sorted(FORMATS))}, or none")
    for keyword in ("pattern", "format"):
        if keyword in schema and {"minLength", "maxLength"} & schema.keys():
            findings.append(
                f"{path}: `{keyword}` together with minLength or maxLength is not supported: put the length into a pattern"
            )
    if "pattern" in schema and schema.get("format") is not None:
        findings.append(f"{path}: `pattern` together with `format` is not supported: keep one")
