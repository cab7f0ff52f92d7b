"""The plainest label that a schema allows: the stub engine's answer."""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import count, cycle, islice, takewhile
from typing import Any

from schemas.jsontext import dump_json

#: Valid values by format, from 1 on; other strings are plain.
_BY_FORMAT = {
    "date": "2000-01-{:02}",
    "date-time": "2000-01-01T00:00:{:02}Z",
    "time": "00:00:{:02}Z",
    "email": "stub{}@example.org",
    "uuid": "00000000-0000-4000-8000-{:012}",
    "uri": "https://example.org/{}",
    "ipv4": "192.0.2.{}",
    "ipv6": "2001:db8::{}",
    "hostname": "stub{}.example.org",
    "duration": "P{}D",
}
#: Values that there are of each format: days that every month has.
_OF_A_FORMAT = 28
#: Steps between the bounds of a number that is no integer.
_STEPS = 64


@lru_cache(maxsize=64)
def plain_label_text(schema_text: str) -> str:
    """A label, as JSON, that a normalised grammar schema allows; patterns and multiples are not looked at."""
    return dump_json(next(_values(json.loads(schema_text))))


def _values(schema: dict[str, Any]) -> Iterator[Any]:
    """Different values that a schema allows, the plainest first: a grammar schema does not say which lists are sets."""
    if "const" in schema:
        yield schema["const"]
        return
    if "enum" in schema:
        yield from schema["enum"]
        return
    if schema.get("anyOf"):
        for option in schema["anyOf"]:
            yield from _values(option)
        return
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        yield from _objects(schema.get("properties", {}))
    elif kind == "array":
        yield _list(schema)
    elif kind == "string":
        yield from _strings(schema)
    elif kind in ("integer", "number"):
        yield from _numbers(schema, whole=kind == "integer")
    else:
        yield from (False, True) if kind == "boolean" else (None,)


def _objects(properties: dict[str, Any]) -> Iterator[dict[str, Any]]:
    plainest = {name: next(_values(item)) for name, item in properties.items()}
    yield plainest
    for name, item in properties.items():
        for value in islice(_values(item), 1, None):
            yield {**plainest, name: value}


def _list(schema: dict[str, Any]) -> list[Any]:
    first = [next(_values(item)) for item in schema.get("prefixItems", [])]
    more = max(0, schema.get("minItems", 0) - len(first))
    # Where there are fewer values than items, it is no set.
    return first + list(islice(cycle(islice(_values(schema["items"]), more)), more) if more else [])


def _strings(schema: dict[str, Any]) -> Iterator[str]:
    shape = _BY_FORMAT.get(schema.get("format", ""))
    if shape is not None:
        yield from (shape.format(number) for number in range(1, _OF_A_FORMAT + 1))
        return
    most = schema.get("maxLength")
    for number in count(1):
        ending = "" if number == 1 else str(number)
        if most is not None and len(ending) > most:
            return
        begun = "stub" if most is None else "stub"[: most - len(ending)]
        yield begun + ending.rjust(schema.get("minLength", 0) - len(begun), "x")


def _numbers(schema: dict[str, Any], *, whole: bool) -> Iterator[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    # A share between 0 and 1 has few whole numbers to offer.
    step = 1 if whole or low is None or high is None else min(1, (high - low) / _STEPS) or 1
    if low is not None and "minimum" not in schema:
        low += step
    if high is not None and "maximum" not in schema:
        high -= step
    plainest = max(0, low) if low is not None else 0
    plainest = min(plainest, high) if high is not None else plainest
    yield from takewhile(lambda value: high is None or value <= high, count(plainest, step))
    yield from takewhile(lambda value: low is None or value >= low, count(plainest - step, -step))
