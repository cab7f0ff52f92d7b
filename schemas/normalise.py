"""JSON Schema to the one form that decodes well: closed, bounded, free of references, the same bytes each time."""

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from schemas.errors import UsageError
from schemas.grammar import RESTRICTIONS, cases_of, is_fixed, left_out, parts
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
    "discriminator",
    "readOnly",
    "writeOnly",
}

#: Keywords that hold schemas: by name, in a list, or one.
_BY_NAME = {"properties", "patternProperties", "dependentSchemas"}
_LISTS = {"anyOf", "oneOf", "prefixItems"}
_ONE = {
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
}  # fmt: skip
#: Keywords that mean something else beside one another.
_TOGETHER = ({"items", "prefixItems"}, {"if", "then", "else"}, {"contains", "minContains", "maxContains"})


@dataclass(frozen=True)
class Normalised:
    """A schema as labels are validated by it, and what was changed on the way (``path: change``), to be shown."""

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
    result = _resolved(schema, "$", definitions, ())
    if result.get("type") != "object" or not result.get("properties"):
        raise UsageError("a label schema needs `type: object` with `properties` at its root: each becomes a column")
    _bound(result, "$", notes)
    return Normalised(result, tuple(notes))


def _target(reference: str, path: str, definitions: dict[str, Any], seen: tuple[str, ...]) -> Any:
    if reference in seen or reference == "#":
        raise UsageError(
            f"{path}: {reference} refers to itself, so its labels have no bound: unroll it to the depth that you need"
        )
    if not reference.startswith(("#/$defs/", "#/definitions/")):
        raise UsageError(f"{path}: the reference {reference!r} leads outside the schema: put the definition in $defs")
    if reference not in definitions:
        raise UsageError(f"{path}: the reference {reference!r} leads nowhere: define it in $defs")
    return definitions[reference]


def _resolved(schema: Any, path: str, definitions: dict[str, Any], seen: tuple[str, ...]) -> Any:
    """A copy without references and annotations, the parts of ``allOf`` merged."""
    if not isinstance(schema, dict):
        return schema
    if "$dynamicRef" in schema:
        raise UsageError(f"{path}: `$dynamicRef` is not supported: use `$ref` into $defs")
    result: Any = {}
    for key, value in schema.items():
        where = f"{path}.{key}"
        if key in _ANNOTATIONS or key in ("$defs", "definitions", "$ref", "allOf"):
            continue
        if key in _BY_NAME:
            inside = path if key == "properties" else where
            result[key] = {name: _resolved(item, f"{inside}.{name}", definitions, seen) for name, item in value.items()}
        elif key in _LISTS:
            result[key] = [_resolved(item, f"{where}[{n}]", definitions, seen) for n, item in enumerate(value)]
        else:
            result[key] = _resolved(value, where, definitions, seen) if key in _ONE else value
    stand_ins = [_resolved(part, path, definitions, seen) for part in schema.get("allOf", [])]
    if "$ref" in schema:
        target = _target(schema["$ref"], path, definitions, seen)
        stand_ins.insert(0, _resolved(target, path, definitions, (*seen, schema["$ref"])))
    for part in reversed(stand_ins):
        result = _merge(part, result, path)
    return result


def _merge(part: Any, own: Any, path: str) -> Any:
    """One schema that means both. A description of its own wins.

    What only restricts may stay apart, in ``allOf``: it is never generated by.
    """
    if not isinstance(part, dict) or not isinstance(own, dict):
        return False if part is False or own is False else own if part is True else part
    for one, other in ((part, own), (own, part)):
        unnamed = other.get("properties", {}).keys() - one.get("properties", {}).keys()
        if "properties" in one and one.get("additionalProperties") is False and unnamed:
            raise UsageError(f"{path}: a closed object is to have more properties: write the two out as one")
    both = [key for key in part if key in own and part[key] != own[key] and key != "description"]
    both += [key for group in _TOGETHER if group & own.keys() for key in part if key in group - own.keys()]
    if both and part.keys() <= RESTRICTIONS:
        return {**own, "allOf": [part, *own.get("allOf", [])]}
    merged = {**part, **own}
    for key in both:
        if key == "properties":
            merged[key] = {
                name: _merge(part[key].get(name, True), own[key].get(name, True), f"{path}.{name}")
                for name in {**part[key], **own[key]}
            }
        elif key in ("required", "allOf"):
            merged[key] = part[key] + [item for item in own[key] if item not in part[key]]
        else:
            raise UsageError(f"{path}: `{key}` is set here and in what is referred to: write the two out as one")
    return merged


def _bound(schema: Any, path: str, notes: list[str]) -> None:
    """Close and bound in place, wherever values are generated by it; what only restricts keeps its meaning."""
    if not isinstance(schema, dict) or is_fixed(schema):
        return
    if "properties" in schema and "patternProperties" in schema:
        notes.append(f"{path}: patternProperties now holds for the fields that `properties` names, and no others")
        _apply_patterns(schema.pop("patternProperties"), schema["properties"], path)
    for where, part in parts(schema):
        _bound(part, path + where, notes)
    if cases_of(schema):
        return
    kind = schema.get("type")
    types = kind if isinstance(kind, list) else [kind]
    if "object" in types and "properties" in schema:
        if schema.get("additionalProperties") not in (False, None):
            notes.append(f"{path}: additionalProperties is now false: a label holds only the fields that it names")
        schema["additionalProperties"] = False
    held = schema.keys() - left_out(schema)
    if "string" in types and "maxLength" not in schema and not held & {"pattern", "format"}:
        schema["maxLength"] = DEFAULT_MAX_LENGTH
        notes.append(f"{path}: no maxLength, bounded to {DEFAULT_MAX_LENGTH} characters")
    if "array" in types and "prefixItems" in schema:
        schema.setdefault("items", False)
    if "array" in types and "maxItems" not in schema and schema.get("items") is not False:
        schema["maxItems"] = DEFAULT_MAX_ITEMS
        notes.append(f"{path}: no maxItems, bounded to {DEFAULT_MAX_ITEMS} items")
    if "integer" in types:
        if not {"minimum", "exclusiveMinimum"} & schema.keys():
            schema["minimum"] = -MAX_EXACT_INTEGER
        if not {"maximum", "exclusiveMaximum"} & schema.keys():
            schema["maximum"] = MAX_EXACT_INTEGER


def _apply_patterns(patterns: dict[str, Any], properties: dict[str, Any], path: str) -> None:
    for pattern, part in patterns.items():
        for name, item in properties.items():
            if re.search(pattern, name):
                properties[name] = _merge(deepcopy(part), item, f"{path}.{name}")
