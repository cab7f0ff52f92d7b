"""Random label schemas of the decoder's subset, each with a pydantic model that means the same, and valid labels."""

import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

#: Characters of text: ASCII with what JSON escapes, other scripts, one beyond the basic plane.
CHARS = st.sampled_from(list('abz AZ09,:{}[]"\\/\n\t\x01é本😀'))
NAMES = st.text(st.sampled_from('ab"é'), min_size=1, max_size=3)


@dataclass(frozen=True)
class Part:
    """A schema, the type that pydantic has for it, and the values that keep to it."""

    schema: dict[str, Any]
    annotation: Any
    values: st.SearchStrategy[Any]


@st.composite
def _texts(draw: st.DrawFn) -> Part:
    low = draw(st.integers(0, 4))
    high = draw(st.integers(low, low + 8))
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return Part(
        schema,
        Annotated[str, Field(min_length=low, max_length=high)],
        st.text(CHARS, min_size=low, max_size=high).map(Free),
    )


@st.composite
def _enums(draw: st.DrawFn) -> Part:
    values = draw(st.lists(st.text(CHARS, max_size=5), min_size=1, max_size=4, unique=True))
    return Part({"type": "string", "enum": values}, Literal[tuple(values)], st.sampled_from(values))


@st.composite
def _integers(draw: st.DrawFn) -> Part:
    low = draw(st.one_of(st.integers(-120, 120), st.integers(-(2**53), 2**53)))
    high = draw(st.one_of(st.integers(low, low + 120), st.integers(low, max(low, 2**53))))
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Part(schema, Annotated[int, Field(ge=low, le=high)], st.integers(low, high))


_LIMITS = st.one_of(st.none(), st.sampled_from([0, 1, -1, 0.5, 0.25, -0.1, 10, 99.5, -20, 1000]))


@st.composite
def _numbers(draw: st.DrawFn) -> Part:
    low, high = draw(_LIMITS), draw(_LIMITS)
    if low is not None and high is not None and low >= high:
        low, high = (high, low) if low > high else (low, low + 1)
    low_name, low_field = draw(st.sampled_from([("minimum", "ge"), ("exclusiveMinimum", "gt")]))
    high_name, high_field = draw(st.sampled_from([("maximum", "le"), ("exclusiveMaximum", "lt")]))
    given = [(low_name, low_field, low), (high_name, high_field, high)]
    schema = {"type": "number"} | {name: limit for name, _, limit in given if limit is not None}
    limits: dict[str, Any] = {name: limit for _, name, limit in given if limit is not None}

    def fits(value: float) -> bool:
        return not (low is not None and (value < low or (value == low and low_field == "gt"))) and not (
            high is not None and (value > high or (value == high and high_field == "lt"))
        )

    # Decimals of a few digits; what has more is cut off by the subset.
    first = int(-2e6 if low is None else low * 1000)
    last = int(2e6 if high is None else high * 1000)
    values = st.integers(first, last).map(lambda thousandths: thousandths / 1000).filter(fits)
    return Part(schema, Annotated[float, Field(**limits)], values)


def _dates() -> st.SearchStrategy[Part]:
    return st.just(Part({"type": "string", "format": "date"}, date, st.dates().map(date.isoformat)))


def _plain() -> st.SearchStrategy[Part]:
    booleans = Part({"type": "boolean"}, bool, st.booleans())
    return st.one_of(_texts(), _enums(), _integers(), _numbers(), _dates(), st.just(booleans))


@st.composite
def _nullable(draw: st.DrawFn) -> Part:
    part = draw(_plain())
    schema = {"anyOf": [part.schema, {"type": "null"}]}
    return Part(schema, part.annotation | None, st.one_of(st.none(), part.values))


@st.composite
def _arrays(draw: st.DrawFn) -> Part:
    item = draw(st.one_of(_texts(), _enums()))
    low = draw(st.integers(0, 2))
    high = draw(st.integers(low, 3))
    schema = {"type": "array", "items": item.schema, "minItems": low, "maxItems": high}
    annotation = Annotated[list[item.annotation], Field(min_length=low, max_length=high)]
    return Part(schema, annotation, st.lists(item.values, min_size=low, max_size=high))


@st.composite
def objects(draw: st.DrawFn, nested: bool = True) -> Part:
    """An object with some optional fields, and other objects in it one level deep."""
    inside = [_plain(), _nullable(), _arrays(), *([objects(nested=False)] if nested else [])]
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    parts = {name: draw(st.one_of(inside)) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {name: part.schema for name, part in parts.items()},
        "required": required,
        "additionalProperties": False,
    }
    fields: dict[str, Any] = {
        f"field{n}": (part.annotation, Field(... if name in required else None, alias=name))
        for n, (name, part) in enumerate(parts.items())
    }
    model: type[BaseModel] = create_model("Label", __config__=ConfigDict(extra="forbid"), **fields)

    @st.composite
    def labels(draw: st.DrawFn) -> dict[str, Any]:
        return {name: draw(part.values) for name, part in parts.items() if name in required or draw(st.booleans())}

    return Part(schema, model, labels())


class Free(str):
    """Text of the model's own, which may be escaped in more than one way."""


def written(label: Any, escaped: bool) -> str:
    """A label as compact JSON, with free text as it is or escaped."""
    if isinstance(label, dict):
        fields = (f"{json.dumps(name, ensure_ascii=False)}:{written(item, escaped)}" for name, item in label.items())
        return "{" + ",".join(fields) + "}"
    if isinstance(label, list):
        return "[" + ",".join(written(item, escaped) for item in label) + "]"
    return json.dumps(label, ensure_ascii=escaped and isinstance(label, Free))
