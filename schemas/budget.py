"""How many tokens a valid label can need."""

from typing import Any

from schemas.jsontext import dump_json

#: UTF-8 bytes one character of a string can take in JSON: `\\uXXXX`. Every tokenizer in use emits at least a byte a token.
BYTES_PER_CHAR = 6
#: Digits, sign, point and exponent of a double written in full.
NUMBER_BYTES = 25
#: A string with a format or a pattern, whose length the schema does not say.
UNBOUNDED_STRING_BYTES = 256
#: The end-of-turn token, and one to spare.
CLOSING_TOKENS = 2


def max_output_tokens(schema: dict[str, Any]) -> int:
    """Tokens that suffice for every label valid under a normalised schema, whatever the tokenizer.

    A sure upper bound, not an estimate: an engine reserves nothing for tokens that are not generated.
    """
    return _bytes(schema) + CLOSING_TOKENS


def _bytes(schema: dict[str, Any]) -> int:
    if "const" in schema:
        return _value_bytes(schema["const"])
    if "enum" in schema:
        return max(_value_bytes(value) for value in schema["enum"])
    branches = [_bytes(part) for key in ("anyOf", "allOf") for part in schema.get(key, [])]
    kinds = schema.get("type")
    branches += [_kind_bytes(kind, schema) for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind]
    return max(branches, default=0)


def _value_bytes(value: Any) -> int:
    # An engine may write any character of it as an escape.
    return BYTES_PER_CHAR * len(dump_json(value))


def _kind_bytes(kind: str, schema: dict[str, Any]) -> int:
    if kind == "object":
        properties = schema.get("properties", {})
        return 2 + sum(_value_bytes(name) + 2 + _bytes(item) for name, item in properties.items())
    if kind == "array":
        parts = [_bytes(part) for part in schema.get("prefixItems", [])]
        items = schema.get("items")
        if isinstance(items, dict):
            parts += [_bytes(items)] * max(0, schema.get("maxItems", 0) - len(parts))
        return 2 + sum(size + 1 for size in parts)
    if kind == "string":
        length = schema.get("maxLength")
        return 2 + (BYTES_PER_CHAR * length if length is not None else UNBOUNDED_STRING_BYTES)
    if kind in ("integer", "number"):
        return NUMBER_BYTES
    return len("false")
