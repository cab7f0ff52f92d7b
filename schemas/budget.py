"""How many tokens a valid label can need."""

import re
from typing import Any

from schemas.grammar import cases_of
from schemas.jsontext import dump_json

#: Bytes that one character of a string can take in JSON: an escape such as ``\\u00e5``. A character beyond the basic
#: plane takes two, but counts as one only to readers of the text: 12 bytes for what engines count as two.
BYTES_PER_CHAR = 6
#: Digits, sign, point and exponent of a double written in full.
NUMBER_BYTES = 25
#: Characters of a string with a format or a pattern, whose length the schema does not say; the counts that a pattern
#: names (``{1,500}``) come on top.
UNBOUNDED_STRING_CHARS = 256
_PATTERN_COUNT = re.compile(r"(\d+)\}")
#: A comma or a colon, with the space that some engines write after it.
SEPARATOR_BYTES = 2
#: The end-of-turn token, and one to spare.
CLOSING_TOKENS = 2
#: Tokens of a document below which a cut would leave nothing to label: the instructions alone fill the context.
MIN_DOCUMENT_TOKENS = 16
#: Parts of one document; a longer one would hold up its chunk for the sake of one row.
MAX_PARTS = 32
#: Characters that a token of a label covers, when room is set aside in the context: English has about four, Chinese
#: between one and two. A label that needs more is cut only where its prompt nearly fills the context.
CHARS_PER_TOKEN = 1


def max_output_tokens(schema: dict[str, Any]) -> int:
    """Tokens that suffice for every label valid under a normalised schema, whatever the tokenizer.

    A sure upper bound, not an estimate: every tokenizer in use covers at least one byte a token, and an engine reserves
    nothing for tokens that are not generated.
    """
    return _size(schema, BYTES_PER_CHAR) + CLOSING_TOKENS


def reserved_output_tokens(schema: dict[str, Any]) -> int:
    """Tokens of the context that must be left after a prompt: what a label with every string full takes in practice."""
    return -(-_size(schema, 1) // CHARS_PER_TOKEN) + CLOSING_TOKENS


def room_words(context: int, reserved: int) -> str:
    """What is left of a context for prompts, in words: with the remedy where the label schema takes most of it.

    :param context: tokens of prompt and output together. :param reserved: see :func:`reserved_output_tokens`.
    """
    words = f"of the model's context of {context:,} tokens {reserved:,} are kept for the longest label of this schema"
    if 2 * reserved <= context:
        return words
    return (
        f"{words}: allow fewer items (maxItems) or shorter strings (max_length), or raise GLEANER_MAX_MODEL_LEN if the "
        "model takes more"
    )


def _size(schema: dict[str, Any], per_char: int) -> int:
    if "const" in schema:
        return _value_size(schema["const"], per_char)
    if "enum" in schema:
        return max(_value_size(value, per_char) for value in schema["enum"])
    if cases := cases_of(schema):
        return max(_size(case, per_char) for case in schema[cases])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return max(_kind_size(kind, schema, per_char) for kind in kinds)


def _value_size(value: Any, per_char: int) -> int:
    if isinstance(value, float):
        return NUMBER_BYTES  # engines write 0.1 as 0.10000000000000001
    # UTF-16, because an engine may escape both halves of a surrogate pair.
    return per_char * len(dump_json(value).encode("utf-16-le")) // 2


def _kind_size(kind: str, schema: dict[str, Any], per_char: int) -> int:
    if kind == "object":
        properties = schema.get("properties", {})
        return 2 + sum(
            _value_size(name, per_char) + _size(item, per_char) + 2 * SEPARATOR_BYTES
            for name, item in properties.items()
        )
    if kind == "array":
        parts = [_size(part, per_char) for part in schema.get("prefixItems", [])]
        items = schema.get("items")
        if isinstance(items, dict):
            parts += [_size(items, per_char)] * max(0, schema.get("maxItems", 0) - len(parts))
        return 2 + sum(size + SEPARATOR_BYTES for size in parts)
    if kind == "string":
        counts = sum(int(count) for count in _PATTERN_COUNT.findall(schema.get("pattern", "")))
        return 2 + per_char * int(schema.get("maxLength", UNBOUNDED_STRING_CHARS + counts))
    if kind in ("integer", "number"):
        return NUMBER_BYTES
    return len("false")
