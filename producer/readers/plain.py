"""What databases, workbooks and columnar files hold, as JSON can hold it."""

import base64
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID


def plain(value: Any) -> Any:
    """A value as JSON: dates in ISO 8601, decimals as text so that no digit is lost, bytes as their text or base64,
    NaN as null, infinities by name. What JSON has stays as it is."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return None if math.isnan(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return _text_of(bytes(value))
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [plain(item) for item in value]
        case _:
            return str(value)


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
