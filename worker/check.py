"""Whether an output is a label: JSON, the label schema, what Postgres can hold, and the schema's own class."""

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, validators
from jsonschema.exceptions import ValidationError as SchemaFault
from pydantic import ValidationError

from schemas.jsontext import any_string, parse_json, storable
from schemas.label_spec import LabelSpec
from schemas.outcomes import Outcome, Reason, RowFinal

#: Seconds for one pattern on one string: a submitter's pattern that backtracks for ever must not stop a worker.
PATTERN_TIMEOUT_S = 0.2
#: Offsets from UTC that Postgres takes in a timestamptz, in hours; RFC 3339 allows up to 23.
MAX_OFFSET_HOURS = 15
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OFFSET_HOURS = re.compile(r"[+-](\d\d):\d\d$")


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[SchemaFault]:
    if not isinstance(value, str):
        return
    try:
        if regex.search(pattern, value, timeout=PATTERN_TIMEOUT_S, concurrent=True) is None:
            yield SchemaFault(f"{value!r} does not match {pattern!r}")
    except TimeoutError:
        yield SchemaFault(f"the pattern {pattern!r} takes over {PATTERN_TIMEOUT_S} s on {value!r}")


def _multiple_of(_: Any, step: float, value: Any, __: Any) -> Iterator[SchemaFault]:
    """As people write numbers: to jsonschema, which divides doubles, 19.99 is no multiple of 0.01."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and Fraction(repr(value)) % Fraction(repr(step)):
        yield SchemaFault(f"{value!r} is not a multiple of {step!r}")


def _is_integer(_: Any, value: Any) -> bool:
    # JSON Schema takes 1.0 for an integer; a bigint column of a view does not.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: Any, value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))  # a double precision column holds no more
    except OverflowError:
        return False


_Validator = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"multipleOf": _multiple_of, "pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number}),
)

#: jsonschema's own, but for moments and uuids what a column of Postgres takes.
_FORMATS = FormatChecker()
_FORMATS.checkers = dict(Draft202012Validator.FORMAT_CHECKER.checkers)


@_FORMATS.checks("date-time")
def _is_moment(value: object) -> bool:
    if not isinstance(value, str):
        return True
    offset = _OFFSET_HOURS.search(value)
    known = Draft202012Validator.FORMAT_CHECKER.conforms(value, "date-time")
    return known and (offset is None or int(offset[1]) <= MAX_OFFSET_HOURS)


@_FORMATS.checks("uuid")
def _is_uuid(value: object) -> bool:
    # jsonschema's own reads what Python's int() reads: signs, white space, other scripts' digits.
    return not isinstance(value, str) or _UUID.fullmatch(value) is not None


class LabelCheck:
    """Validates outputs against one label spec."""

    def __init__(self, spec: LabelSpec) -> None:
        self._validator = _Validator(spec.json_schema, format_checker=_FORMATS)
        self._model = spec.model_class()

    def label(self, text: str) -> Any:
        """The label in an output.

        :raises RowFinal: ``invalid`` with ``not_json``, ``bad_characters`` or ``schema_mismatch``.
        """
        try:
            label = parse_json(text, raw_controls=True)
        except ValueError as error:
            raise RowFinal(Outcome.INVALID, Reason.NOT_JSON, str(error)) from None
        return self.validated(label)

    def validated(self, label: Any) -> Any:
        """The label, checked; raises as :meth:`label` does."""
        if any_string(label, lambda value: not storable(value)):
            raise RowFinal(Outcome.INVALID, Reason.BAD_CHARACTERS, "a NUL or a lone surrogate in the output")
        fault = next(iter(self._validator.iter_errors(label)), None)
        if fault is not None:
            raise RowFinal(Outcome.INVALID, Reason.SCHEMA_MISMATCH, f"{fault.json_path}: {fault.message}")
        if self._model is None:
            return label
        try:
            return self._model.model_validate(label).model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            reason = f"$.{where}: {first['msg']}"
        except Exception as error:
            # A validator of the class that fails in a way of its own costs this row, not its chunk.
            reason = f"$: a validator failed: {type(error).__name__}: {error}"
        raise RowFinal(Outcome.INVALID, Reason.SCHEMA_MISMATCH, reason)
