"""The canary tells an engine that keeps to the label schema from one that does not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from answering_engine import AnsweringEngine, generation

from schemas.label_spec import LabelSpec, builtin_names, load_label_spec
from schemas.outcomes import CanaryFailed, EngineLost, Outcome, Reason, RequestFailed, RowFinal
from schemas.settings import Settings
from worker import canary
from worker.canary import DOCUMENT, prove_grammar
from worker.engine.stub import StubEngine
from worker.specs import prepared

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["kind", "code", "day"],
    "additionalProperties": False,
}
SPEC = LabelSpec(name="s", json_schema=SCHEMA, system_prompt="Label.")
LABEL = {"kind": "a", "code": "AB", "day": "2026-01-01"}
GOOD = json.dumps(LABEL, separators=(",", ":"))


def prove(engine: AnsweringEngine, look=lambda: None, spec: LabelSpec = SPEC) -> None:
    prove_grammar(engine, prepared(spec, Settings(engine="stub"), engine)[0], look)


@pytest.mark.parametrize("name", builtin_names())
def test_the_stub_passes(name) -> None:
    spec, _ = load_label_spec(name)
    engine = StubEngine(Settings(engine="stub"))
    engine.start()
    prove(engine, spec=spec)
    engine.close()


def test_a_label_passes_with_one_request_under_the_jobs_own_schema() -> None:
    engine = AnsweringEngine(lambda _: GOOD)
    prove(engine)
    assert len(engine.requests) == 1
    assert engine.requests[0].schema_text == SPEC.schema_text
    assert engine.requests[0].max_tokens == SPEC.max_output_tokens
    assert "banana" in DOCUMENT


@pytest.mark.parametrize("label", [{**LABEL, "code": "x"}, {**LABEL, "day": "2026-02-31"}], ids=["pattern", "format"])
def test_what_a_grammar_reads_otherwise_than_we_is_not_held_against_it(label) -> None:
    prove(AnsweringEngine(lambda _: json.dumps(label)))


def test_what_the_grammar_lacks_is_not_held_against_it() -> None:
    schema = {**SCHEMA, "not": {"required": ["kind"]}, "allOf": [{"maxProperties": 1}]}
    prove(AnsweringEngine(lambda _: GOOD), spec=SPEC.model_copy(update={"json_schema": schema}))


@pytest.mark.parametrize(
    "text",
    [
        "banana",
        "",
        " " + GOOD,
        f"<think>\nLet me see.\n</think>\n\n{GOOD}",
        f"```json\n{GOOD}\n```",
        GOOD + " There you are.",
        GOOD[:-1],
        "[]",
        '{"answer":"banana"}',
        json.dumps({**LABEL, "kind": "banana"}),
        json.dumps({**LABEL, "more": 1}),
    ],
)
def test_anything_else_fails_and_is_shown(text) -> None:
    with pytest.raises(CanaryFailed, match="does not keep to the label schema s: ") as caught:
        prove(AnsweringEngine(lambda _: text))
    assert repr(text[:20])[:-1] in str(caught.value)


def test_a_cut_output_gets_another_seed() -> None:
    answers = iter([generation(GOOD[:20], "length"), generation(GOOD)])
    engine = AnsweringEngine(lambda _: next(answers))
    prove(engine)
    assert [request.seed for request in engine.requests] == [0, 1]


def test_cut_twice_inside_a_label_is_a_small_model_not_a_missing_grammar(caplog) -> None:
    prove(AnsweringEngine(lambda _: generation(GOOD[:20], "length")))
    assert "twice" in caplog.text


@pytest.mark.parametrize("text", ["<think>Well, the user wants", '{"banana":', "{ "])
def test_cut_twice_outside_a_label_fails(text) -> None:
    with pytest.raises(CanaryFailed, match="does not keep to"):
        prove(AnsweringEngine(lambda _: generation(text, "length")))


@pytest.mark.parametrize("finish_reason", ["length", "stop"])
def test_a_model_that_only_thinks_is_named_with_the_remedy(finish_reason) -> None:
    thought = replace(generation("", finish_reason), thoughts="Well, the user wants")
    with pytest.raises(CanaryFailed, match="the model thought and did not answer: turn its thinking off"):
        prove(AnsweringEngine(lambda _: thought))


@pytest.mark.parametrize(
    "error",
    [RowFinal(Outcome.REJECTED, Reason.REFUSED, "the grammar has no such thing"), RequestFailed("out of luck")],
)
def test_a_refusal_is_named(error) -> None:
    with pytest.raises(CanaryFailed, match=str(error)):
        prove(AnsweringEngine(lambda _: error))


def test_an_engine_that_dies_is_no_failed_canary() -> None:
    with pytest.raises(EngineLost):
        prove(AnsweringEngine(lambda _: EngineLost("gone")))


def test_the_wait_is_ended_from_outside_and_the_request_cancelled() -> None:
    engine = AnsweringEngine(lambda _: None)

    def look() -> Any:
        raise EngineLost("gone")

    with pytest.raises(EngineLost):
        prove(engine, look)
    assert engine.futures[0].cancelled()


def test_an_answer_that_never_comes_is_the_engines_fault(monkeypatch) -> None:
    monkeypatch.setattr(canary, "ANSWER_S", 0.0)
    with pytest.raises(EngineLost, match="no answer"):
        prove(AnsweringEngine(lambda _: None))


def test_instructions_that_fill_the_context_are_the_rows_matter() -> None:
    engine = AnsweringEngine(lambda _: GOOD, max_model_len=100)
    prove(engine, spec=SPEC.model_copy(update={"system_prompt": "x" * 99}))
    assert engine.requests == []
