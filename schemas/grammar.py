"""The grammar schema: the part of a label schema that holds the engine while it writes. The rest is checked after."""

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

#: Formats that the backend has a grammar for. Not the two JSON pointers: their grammar lets quotes through, so that the
#: output is no JSON.
FORMATS = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference",
    "uri-template",
}  # fmt: skip

#: Keywords that only restrict and that xgrammar ignores (tried with 0.2.8), or that vLLM refuses though xgrammar has
#: them. To leave one out never forbids a valid label.
RESTRICTIONS = {
    "multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "patternProperties", "propertyNames",
    "unevaluatedProperties", "unevaluatedItems", "dependentSchemas", "dependentRequired", "not", "if", "then", "else",
    "allOf",
}  # fmt: skip
#: Keywords that no validator checks.
_DESCRIBING = {"contentEncoding", "contentMediaType", "contentSchema"}
_KEYWORDS = Draft202012Validator.VALIDATORS.keys() | RESTRICTIONS | _DESCRIBING
_LENGTHS = {"minLength", "maxLength"}
_CASES = ("anyOf", "oneOf")

#: The parts of a pattern that need a look: escapes, groups with a question mark, braces, quotes and control characters.
_PATTERN_PARTS = re.compile(r'\\u[0-9a-fA-F]{4}|\\.|\(\?P?.|\{[^}]*\}?|\[\^?\]|["\x00-\x1f]', re.DOTALL)
#: Those that the backend keeps. The others it refuses, ignores, or writes into a JSON string as they are.
_PATTERN_KEPT = re.compile(
    r"\\u(?!00(?:22|5[cC]|[01]))[0-9a-fA-F]{4}|\\[dDwWsS]|\\[^\w\s\"\\]|\(\?(:|P<)|\{\d+(,\d*)?\}"
)
_PATTERN_ATOMS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]")
_PATTERN_GROUP = re.compile(r"\([^()]*\)")


@dataclass(frozen=True)
class Grammar:
    """What the engine gets of a label schema, and what was moved to validation instead (``path: keyword ...``)."""

    schema: dict[str, Any]
    moved: tuple[str, ...]


def grammar_of(json_schema: dict[str, Any]) -> Grammar:
    """Derive the grammar schema of a normalised label schema, the same bytes each time.

    It allows every label that the label schema allows, and more: so output is validated against the label schema.
    """
    schema = deepcopy(json_schema)
    moved: list[str] = []
    _derive(schema, "$", moved)
    return Grammar(schema, tuple(moved))


def _derive(schema: Any, path: str, moved: list[str]) -> None:
    if not isinstance(schema, dict):
        return
    for where, part in parts(schema):
        _derive(part, path + where, moved)
    cases = cases_of(schema)
    for key in left_out(schema):
        if not is_fixed(schema):
            moved.append(f"{path}: `{key}` {_fate(key, schema[key])}")
        del schema[key]
    if cases == "oneOf":
        moved.append(f"{path}: `oneOf` is checked after generation: the engine takes it for `anyOf`")
        schema["anyOf"] = schema.pop("oneOf")


def _fate(key: str, value: Any) -> str:
    if key in _DESCRIBING or (key == "format" and value not in Draft202012Validator.FORMAT_CHECKER.checkers):
        return f"({value!r}) only describes: the engine can't constrain it, and nothing checks it"
    if key == "pattern" and not _is_anchored(value):
        return "is checked after generation: the engine can't constrain it unless it stands alone, as ^(...)$"
    return "is checked after generation: the engine can't constrain it"


def is_fixed(schema: dict[str, Any]) -> bool:
    """Whether the values are listed: the backend looks at nothing beside them, and need not."""
    return "enum" in schema or "const" in schema


def cases_of(schema: dict[str, Any]) -> str | None:
    """``anyOf`` or ``oneOf`` where its cases say what is generated; None where they restrict what stands beside them.

    The backend can't do both at once.
    """
    key = next((key for key in _CASES if key in schema), None)
    if key is None or is_fixed(schema) or schema.keys() & {"properties", "items", "prefixItems"}:
        return None
    return key if "type" not in schema or all(_says_what(case) for case in schema[key]) else None


def _says_what(case: Any) -> bool:
    if not isinstance(case, dict):
        return False
    return is_fixed(case) or "type" in case or any(all(map(_says_what, case[key])) for key in _CASES if key in case)


def parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas inside a schema by which values are generated, each with its path from there."""
    cases = cases_of(schema)
    if cases:
        yield from ((f".{cases}[{n}]", case) for n, case in enumerate(schema[cases]))
    elif not is_fixed(schema):
        yield from ((f".{name}", item) for name, item in schema.get("properties", {}).items())
        yield from ((f".prefixItems[{n}]", item) for n, item in enumerate(schema.get("prefixItems", [])))
        if schema.get("items", False) is not False:
            yield ".items", schema["items"]


def left_out(schema: dict[str, Any]) -> list[str]:
    """The keywords of a schema, its parts aside, that its grammar schema lacks."""
    if is_fixed(schema):
        out = _KEYWORDS - {"type", "enum", "const"}
    elif cases := cases_of(schema):
        out = _KEYWORDS - {cases}
    else:
        out = RESTRICTIONS | _DESCRIBING | set(_CASES) | _of_text(schema)
    return [key for key in schema if key in out]


def _of_text(schema: dict[str, Any]) -> set[str]:
    """Which of format, pattern and lengths give way; the backend takes one of them.

    A format wins: a typed column needs it, and many have no checker, while lengths and patterns can always be checked.
    Lengths win over a pattern, because they bound the output.
    """
    if schema.get("format") in FORMATS:
        return {"pattern", *_LENGTHS}
    if schema.keys() & _LENGTHS or not _is_readable(schema.get("pattern", "^$")):
        return {"pattern", "format"}
    return {"format"}


def _is_readable(pattern: str) -> bool:
    """Whether the backend reads a pattern as JSON Schema means it."""
    return _is_anchored(pattern) and all(map(_PATTERN_KEPT.fullmatch, _PATTERN_PARTS.findall(pattern)))


def _is_anchored(pattern: str) -> bool:
    """Whether a pattern says all of the text, from ^ to $; the backend reads every pattern so, and skips other anchors.

    Possessive counts, which it doesn't know, count as not anchored.
    """
    plain = _PATTERN_ATOMS.sub("x", pattern)
    if not re.fullmatch(r"\^[^^$]*\$", plain) or re.search(r"[*+?}]\+", plain):
        return False
    while (shorter := _PATTERN_GROUP.sub("x", plain)) != plain:
        plain = shorter
    return "|" not in plain
