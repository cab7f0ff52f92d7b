"""The text of one record to a JSON object, or to the reason why it is none."""

import json
from typing import Any

from producer.records import EXCERPT_CHARS, Reject, kind
from schemas.jsontext import parse_record
from schemas.outcomes import RejectCode

#: UTF-8 bytes of a character at most: so much of a record suffices for an excerpt.
_CHAR_BYTES = 4


def excerpt(record: bytes) -> str:
    """The beginning of a record that may not be decodable."""
    return record[: EXCERPT_CHARS * _CHAR_BYTES].decode("utf-8", "replace")


def too_large(beginning: str, what: str, max_bytes: int) -> Reject:
    """The reject for a record that was never held as a whole."""
    return Reject.of(
        RejectCode.TOO_LARGE, f"the {what} has over {max_bytes:,} bytes (GLEANER_RECORD_MAX_BYTES)", beginning
    )


def parse_bytes(record: bytes, what: str) -> dict[str, Any] | Reject:
    """Parse UTF-8. :param what: what the record is in its file, for messages: ``line``."""
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte 0x{record[error.start]:02x} at byte {error.start + 1} of the {what}"
        reason = f"not UTF-8: {place}. It is damaged, or --encoding names the right one"
        return Reject.of(RejectCode.BAD_ENCODING, reason, excerpt(record))
    return parse_text(text, what)


def parse_text(text: str, what: str) -> dict[str, Any] | Reject:
    """Parse one record strictly. An object with two values for one key is refused: which is meant, nobody can say."""
    try:
        value = parse_record(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at character {error.pos + 1} of the {what}"
        if error.msg == "Extra data" and text[error.pos :].lstrip().startswith(("{", "[")):
            reason += ": a line must hold one object and end with a line feed"
        return Reject.of(RejectCode.INVALID_JSON, reason, text)
    except ValueError as error:
        # Python's own words for too many digits name a remedy that is none here.
        said = "a whole number has over 4,300 digits" if "int_max_str_digits" in str(error) else str(error)
        return Reject.of(RejectCode.INVALID_JSON, said, text)
    if not isinstance(value, dict):
        reason = f"the {what} is {kind(value)}, not an object"
        if isinstance(value, str):
            reason += ': make it one, as {"text": ...}'
        return Reject.of(RejectCode.NOT_AN_OBJECT, reason, text)
    return value
