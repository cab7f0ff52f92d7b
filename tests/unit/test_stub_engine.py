"""The stub answers validly, at its speed, and drops what is cancelled."""

from concurrent.futures import wait
from typing import Any

import pytest

from schemas.label_spec import LabelSpec, builtin_names, load_label_spec
from schemas.normalise import normalise
from schemas.settings import Settings
from worker.check import LabelCheck
from worker.engine.base import Prompt, Request
from worker.engine.plain_label import plain_label_text
from worker.engine.stub import StubEngine


def request_for(schema_text: str) -> Request:
    return Request(Prompt(1), schema_text, max_tokens=100, temperature=0, top_p=1, seed=0)


@pytest.mark.parametrize("name", builtin_names())
def test_answers_are_valid_labels(name: str) -> None:
    spec, _ = load_label_spec(name)
    engine = StubEngine(Settings(engine="stub"))
    engine.start()
    answer = engine.submit(request_for(spec.schema_text)).result(timeout=10)
    engine.close()
    assert LabelCheck(spec).label(answer.text)


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "minLength": 9, "maxLength": 12},
        {"type": "string", "format": "date-time"},
        {"type": "integer", "minimum": 5, "maximum": 6},
        {"type": "integer", "minimum": -9, "maximum": -2},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "array", "items": {"enum": ["å", "中"]}, "minItems": 2, "maxItems": 4},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        {"type": ["null", "boolean"]},
        {"const": 4},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 1}], "items": False, "minItems": 2},
        {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False},
    ],
)
def test_answers_keep_to_the_bounds(field: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"f": field}, "required": ["f"], "additionalProperties": False}
    spec = LabelSpec(name="s", json_schema=schema, system_prompt="Label.")
    engine = StubEngine(Settings(engine="stub"))
    engine.start()
    answer = engine.submit(request_for(spec.schema_text)).result(timeout=10)
    engine.close()
    assert "f" in LabelCheck(spec).label(answer.text)


@pytest.mark.parametrize(
    "items",
    [
        {"type": "string", "maxLength": 20},
        {"type": "string", "minLength": 3, "maxLength": 3},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uuid"},
        {"type": "integer"},
        {"type": "integer", "minimum": -3, "maximum": 1},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"enum": ["a", "b", "c", "d"]},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"const": "x"}]},
        {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"enum": ["a", "b", "c"]}},
            "required": ["x", "y"],
        },
    ],
)
def test_items_of_a_set_differ(items: dict[str, Any]) -> None:
    """The engine is held to a schema that does not say that they must: its labels are checked for it."""
    tags = {"type": "array", "items": items, "minItems": 4, "maxItems": 5, "uniqueItems": True}
    schema = normalise({"type": "object", "properties": {"tags": tags}, "required": ["tags"]}).json_schema
    spec = LabelSpec(name="s", json_schema=schema, system_prompt="Label.")
    assert "uniqueItems" not in spec.schema_text
    assert len(LabelCheck(spec).label(plain_label_text(spec.schema_text))["tags"]) == 4


def test_cancelled_requests_are_not_served() -> None:
    engine = StubEngine(Settings(engine="stub", stub_rows_per_s=5))
    engine.start()
    spec, _ = load_label_spec("papers")
    futures = [engine.submit(request_for(spec.schema_text)) for _ in range(50)]
    for future in futures[1:]:
        future.cancel()
    wait(futures, timeout=10)
    engine.close()
    assert sum(not future.cancelled() for future in futures) <= 2
