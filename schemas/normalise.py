"""JSON Schema to the one form that decodes well: closed, bounded, free of references, the same bytes each time."""

from dataclasses import dataclass
from typing import Any

from schemas.errors import UsageError
from schemas.lint import require_json_schema

#: Characters of a string without ``maxLength``. About two sentences; says so, because it changes the schema.
DEFAULT_MAX_LENGTH = 256
#: Items of an array without ``maxItems``.
DEFAULT_MAX_ITEMS = 16
#: Bound of an integer without limits: what a bigint, a double and every JSON reader hold exactly.
MAX_EXACT_INTEGER = 2**53 - 1

#: Words about the schema, not about the value. They would cost prompt bytes and change the digest for nothing.
_ANNOTATIONS = {
    "title",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
}


@dataclass(frozen=True)
class Normalised:
    """A schema as the engine gets it, and what was changed on the way (``path: change``), to be shown."""

    json_schema: dict[str, Any]
    notes: tuple[str, ...]


def normalise(schema: dict[str, Any]) -> Normalised:
    """Close every object, bound every string and array, and put definitions where they are referred to.

    :param schema: a JSON Schema whose root is an object. Order of properties is kept: it is the order in which the
        model writes them.
    :raises UsageError: for what is no JSON Schema, a root that is no object, a reference that leads nowhere or back to
        itself, or a keyword that is set twice.
    """
    notes: list[str] = []
    if not isinstance(schema, dict):
        raise UsageError("a label schema is a JSON object with type object: this one is no object")
    require_json_schema(schema)
    definitions = {
        f"#/{key}/{name.replace('~', '~0').replace('/', '~1')}": item
        for key in ("$defs", "definitions")
        for name, item in schema.get(key, {}).items()
    }
    result = _walk(schema, "$", definitions, (), notes)
    if result.get("type") != "object" or not result.get("properties"):
        raise UsageError("a label schema needs `type: object` with `properties` at its root: each becomes a column")
    return Normalised(result, tuple(notes))


def _resolve(schema: dict[str, Any], path: str, definitions: dict[str, Any], seen: tuple[str, ...]) -> Any:
    reference = schema["$ref"]
    if reference in seen or reference == "#":
        raise UsageError(
            f"{path}: {reference} refers to itself, so its labels have no bound: unroll it to the depth that you need"
        )
    if not reference.startswith(("#/$defs/", "#/definitions/")):
        raise UsageError(f"{path}: the reference {reference!r} leads outside the schema: put the definition in $defs")
    if reference not in definitions:
        raise UsageError(f"{path}: the reference {reference!r} leads nowhere: define it in $defs")
    return _merge(definitions[reference], {key: value for key, value in schema.items() if key != "$ref"}, path)


def _merge(part: Any, siblings: dict[str, Any], path: str) -> Any:
    """One schema that means both; what a node says about itself wins over what its definition says."""
    if not isinstance(part, dict):
        return siblings if part else part
    for key in part.keys() & siblings.keys() - _ANNOTATIONS - {"description"}:
        if part[key] != siblings[key]:
            raise UsageError(f"{path}: `{key}` is set here and in what is referred to: write the two out as one")
    return {**part, **siblings}


def _walk(schema: Any, path: str, definitions: dict[str, Any], seen: tuple[str, ...], notes: list[str]) -> Any:
    while isinstance(schema, dict):
        if "$ref" in schema:
            schema, seen = _resolve(schema, path, definitions, seen), (*seen, schema["$ref"])
        elif len(schema.get("allOf", ())) == 1:
            # pydantic once wrapped a described reference so; one part is the part itself.
            schema = _merge(schema["allOf"][0], {key: item for key, item in schema.items() if key != "allOf"}, path)
        else:
            break
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ANNOTATIONS or key in ("$defs", "definitions"):
            continue
        if key == "properties":
            result[key] = {
                name: _walk(item, f"{path}.{name}", definitions, seen, notes) for name, item in value.items()
            }
        elif key in (
            "items",
            "additionalProperties",
            "contains",
            "not",
            "if",
            "then",
            "else",
            "propertyNames",
        ):
            result[key] = _walk(value, f"{path}.{key}", definitions, seen, notes)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            result[key] = [_walk(item, f"{path}.{key}[{n}]", definitions, seen, notes) for n, item in enumerate(value)]
        else:
            result[key] = value
    _bound(result, path, notes)
    return result


def _types(schema: dict[str, Any]) -> tuple[Any, ...]:
    kind = schema.get("type")
    return tuple(kind) if isinstance(kind, list) else (kind,)


def _bound(schema: dict[str, Any], path: str, notes: list[str]) -> None:
    types = _types(schema)
    fixed = "enum" in schema or "const" in schema
    if "object" in types and "properties" in schema:
        if schema.get("additionalProperties") not in (False, None):
            notes.append(f"{path}: additionalProperties is now false: a label holds only the fields that it names")
        schema["additionalProperties"] = False
    if "string" in types and not fixed and not {"maxLength", "pattern", "format"} & schema.keys():
        schema["maxLength"] = DEFAULT_MAX_LENGTH
        notes.append(f"{path}: no maxLength, bounded to {DEFAULT_MAX_LENGTH} characters")
    if "array" in types and "prefixItems" in schema:
        schema.setdefault("items", False)
    if "array" in types and "maxItems" not in schema and schema.get("items") is not False:
        schema["maxItems"] = DEFAULT_MAX_ITEMS
        notes.append(f"{path}: no maxItems, bounded to {DEFAULT_MAX_ITEMS} items")
    if "integer" in types and not fixed:
        if not {"minimum", "exclusiveMinimum"} & schema.keys():
            schema["minimum"] = -MAX_EXACT_INTEGER
        if not {"maximum", "exclusiveMaximum"} & schema.keys():
            schema["maximum"] = MAX_EXACT_INTEGER
