"""JSON as Postgres takes it: no NaN, no NUL, no lone surrogates. Works on object trees, never on dumped text."""

import json
import re
from collections.abc import Callable
from typing import Any

#: What Postgres can't store in text or jsonb: NUL, and halves of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class NonFiniteNumber(ValueError):
    """NaN, Infinity or -Infinity: not JSON, though Python's parser takes them."""


def dump_json(value: Any) -> str:
    """Dump compactly, text as it is; raises ``ValueError`` for NaN and Infinity."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _refuse(constant: str) -> Any:
    raise NonFiniteNumber(f"{constant} is not JSON")


def parse_json(text: str | bytes) -> Any:
    """Parse strictly: NaN and Infinity raise :class:`NonFiniteNumber`, other faults ``ValueError``.

    Text nested beyond the interpreter's recursion limit raises ``ValueError`` too.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def storable(text: str) -> bool:
    """Whether Postgres can store the text as it is."""
    return _UNSTORABLE.search(text) is None


def make_storable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD, one for one, so that offsets stay."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every string of a JSON value, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value


def any_string(value: Any, test: Callable[[str], bool]) -> bool:
    """Whether ``test`` holds for any string of a JSON value, keys too."""
    if isinstance(value, str):
        return test(value)
    if isinstance(value, dict):
        return any(test(key) or any_string(item, test) for key, item in value.items())
    if isinstance(value, list):
        return any(any_string(item, test) for item in value)
    return False
