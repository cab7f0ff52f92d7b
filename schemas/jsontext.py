"""JSON as Postgres takes it: no NaN, no NUL, no lone surrogates. Works on object trees, never on dumped text."""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

#: What Postgres can't store in text or jsonb: NUL, and halves of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_WHITE_SPACE = " \t\n\r"
#: Levels of objects and lists that are parsed. Far from the interpreter's recursion limit wherever a value is walked.
MAX_NESTING = 200


class NonFiniteNumber(ValueError):
    """NaN or Infinity, written out or as 1e400: Python's parser takes them, Postgres and other parsers don't."""


# Made once, with what `json.dumps` would make at each call: that takes longer than to dump a record.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump_json(value: Any) -> str:
    """Dump compactly, text as it is; raises ``ValueError`` for NaN and Infinity."""
    return _ENCODER.encode(value)


def _refuse(constant: str) -> Any:
    raise NonFiniteNumber(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise NonFiniteNumber(f"{number[:20]} is beyond the range of a double")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} stands twice in one object")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_LENIENT_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, strict=False)
_RECORD_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
_scan_record = _RECORD_DECODER.scan_once  # type: ignore[attr-defined]


def parse_json(text: str | bytes, *, raw_controls: bool = False) -> Any:
    """Parse strictly: NaN, Infinity and numbers that become it (1e400) raise :class:`NonFiniteNumber`, other faults
    ``ValueError``.

    Text nested over :data:`MAX_NESTING` levels raises ``ValueError`` too.

    :param raw_controls: take line ends, tabs and other control characters that stand in strings as they are: grammars
        of structured output let models write them, and what they mean is plain.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _parsed(text, _LENIENT_DECODER if raw_controls else _DECODER)


def parse_record(text: str) -> Any:
    """Parse one record of a corpus, as :func:`parse_json` and quicker; an object with two values for one key raises
    ``ValueError`` too, since nobody can say which is meant."""
    try:
        # What `decode` does, without looking for white space around: most records have none.
        value, end = _scan_record(text, 0)
    except (StopIteration, RecursionError):
        return _parsed(text, _RECORD_DECODER)
    if end == len(text) and not _may_nest_over(text, MAX_NESTING):
        return value
    return _parsed(text, _RECORD_DECODER) if text[end:].strip(_WHITE_SPACE) else _bounded(value)


def _parsed(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return _bounded(decoder.decode(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _bounded(value: Any) -> Any:
    if nested_over(value, MAX_NESTING):
        raise ValueError(f"nested too deeply: over {MAX_NESTING} levels")
    return value


def _may_nest_over(text: str, levels: int) -> bool:
    """Whether a JSON text may be nested deeper: it can't be with so few brackets, and to count them is quick."""
    return ("[" in text or text.find("{", 1) > 0) and text.count("[") + text.count("{") > levels


def nested_over(value: Any, levels: int) -> bool:
    """Whether objects and lists nest deeper than ``levels``. Not recursive: works at any depth."""
    outer = [value]
    for _ in range(levels + 1):
        outer = [item for item in outer if isinstance(item, dict | list)]
        if not outer:
            return False
        outer = [inner for item in outer for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def storable(text: str) -> bool:
    """Whether Postgres can store the text as it is."""
    return _UNSTORABLE.search(text) is None


def make_storable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD, one for one, so that offsets stay."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every string of a JSON value, keys too.

    A key that would become the same as another gets as many replacement characters more as tell it apart.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_strings(item, change) for key, item in zip(_keys(value, change), value.values(), strict=True)}
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value


def _keys(names: Iterable[str], change: Callable[[str], str]) -> list[str]:
    made = {name: change(name) for name in names}
    taken = {name for name, changed in made.items() if name == changed}
    for name, changed in made.items():
        if name == changed:
            continue
        while changed in taken:
            changed += _REPLACEMENT  # noqa: PLW2901
        taken.add(changed)
        made[name] = changed
    return list(made.values())


def any_string(value: Any, test: Callable[[str], bool]) -> bool:
    """Whether ``test`` holds for any string of a JSON value, keys too."""
    if isinstance(value, str):
        return test(value)
    if isinstance(value, dict):
        return any(test(key) or any_string(item, test) for key, item in value.items())
    if isinstance(value, list):
        return any(any_string(item, test) for item in value)
    return False
