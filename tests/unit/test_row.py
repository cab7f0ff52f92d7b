"""One document's way to its row: budget, tries, validation, outcome."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from schemas.label_spec import LabelSpec, load_label_spec
from schemas.outcomes import Outcome, Reason, RequestFailed, RowFinal
from worker.check import LabelCheck
from worker.engine.base import Generation, Prompt
from worker.row import RETRY_TEMPERATURE, RowInFlight, RowRules, final_row

GOOD = {"purpose": "library", "for_developers": True, "main_function": "parses", "summary": "Parses things."}


def rules(spec: LabelSpec | None = None, max_model_len: int = 8192, max_tries: int = 3) -> RowRules:
    spec = spec or load_label_spec("packages")[0]
    return RowRules(spec, LabelCheck(spec), max_model_len, max_tries, seed=7)


def plain_spec(**properties: Any) -> LabelSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return LabelSpec(name="plain", json_schema=schema, system_prompt="Label.")


def generation(text: str, finish_reason: str = "stop") -> Generation:
    return Generation(text=text, finish_reason=finish_reason, prompt_tokens=101, output_tokens=12, cached_tokens=8)


def test_valid_output_is_an_ok_row_with_its_figures() -> None:
    row = RowInFlight(rules(), 5, Prompt(100))
    row.request()
    done = row.take(generation(json.dumps(GOOD)), 0.25)
    assert done is not None
    assert (done.ordinal, done.outcome, done.label) == (5, Outcome.OK, GOOD)
    assert (done.prompt_tokens, done.output_tokens, done.cached_tokens, done.tries) == (101, 12, 8, 1)
    assert (done.finish_reason, done.latency_s, done.reason_code, done.raw_output) == ("stop", 0.25, None, None)


def test_invalid_output_is_tried_again_with_another_seed_and_warmth_then_ends_invalid() -> None:
    row = RowInFlight(rules(), 0, Prompt(1))
    first = row.request()
    assert (first.temperature, first.seed) == (0.0, 7)
    assert row.take(generation("{"), 0.1) is None
    second = row.request()
    assert (second.temperature, second.seed) == (RETRY_TEMPERATURE, 8)
    assert row.take(generation("{"), 0.1) is None
    assert row.request().seed == 9
    done = row.take(generation('{"purpose": "sandwich"}'), 0.1)
    assert done is not None
    assert (done.outcome, done.reason_code, done.tries) == (Outcome.INVALID, Reason.SCHEMA_MISMATCH, 3)
    assert done.raw_output == '{"purpose": "sandwich"}'
    assert done.label is None
    assert done.latency_s == pytest.approx(0.3)


def test_output_at_its_limit_ends_truncated_with_what_came() -> None:
    row = RowInFlight(rules(max_tries=1), 0, Prompt(1))
    row.request()
    done = row.take(generation('{"purpose": "libr', "length"), 0.1)
    assert done is not None
    assert (done.outcome, done.reason_code, done.raw_output) == (
        Outcome.TRUNCATED,
        Reason.OUTPUT_LIMIT,
        '{"purpose": "libr',
    )


@pytest.mark.parametrize(
    ("finish_reason", "outcome", "code"),
    [("length", Outcome.TRUNCATED, Reason.OUTPUT_LIMIT), ("stop", Outcome.INVALID, Reason.NOT_JSON)],
)
def test_a_model_that_only_thought_says_so_and_shows_its_thoughts(finish_reason, outcome, code) -> None:
    row = RowInFlight(rules(max_tries=1), 0, Prompt(1))
    row.request()
    done = row.take(replace(generation("", finish_reason), thoughts="Well, the user"), 0.1)
    assert done is not None
    assert (done.outcome, done.reason_code, done.raw_output) == (outcome, code, "Well, the user")
    assert done.reason is not None
    assert "the model thought and did not answer: turn its thinking off" in done.reason


def test_failed_request_is_tried_again_then_failed() -> None:
    row = RowInFlight(rules(max_tries=2), 0, Prompt(1))
    row.request()
    assert row.fail(RequestFailed("no answer"), 0.1) is None
    row.request()
    done = row.fail(RequestFailed("no answer"), 0.1)
    assert done is not None
    assert (done.outcome, done.reason_code, done.reason, done.tries) == (
        Outcome.FAILED,
        Reason.ENGINE_ERROR,
        "no answer",
        2,
    )


def test_refused_prompt_is_final_at_once() -> None:
    row = RowInFlight(rules(), 0, Prompt(1))
    row.request()
    done = row.fail(RowFinal(Outcome.REJECTED, Reason.REFUSED, "too odd"), 0.1)
    assert done is not None
    assert (done.outcome, done.reason_code) == (Outcome.REJECTED, Reason.REFUSED)


def test_a_prompt_must_leave_room_for_a_label() -> None:
    shared = rules(max_model_len=1000)
    fits = 1000 - shared.reserved_output_tokens
    assert (shared.excess(fits), shared.excess(fits + 1)) == (0, 1)
    assert RowInFlight(shared, 0, Prompt(fits)).request().max_tokens == shared.reserved_output_tokens


def test_token_budget_is_never_more_than_a_label_can_need() -> None:
    shared = rules(max_model_len=100_000)
    assert RowInFlight(shared, 0, Prompt(1)).request().max_tokens == shared.max_output_tokens


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no json", Reason.NOT_JSON),
        ('{"n": NaN}', Reason.NOT_JSON),
        ('{"n": 1e999}', Reason.NOT_JSON),
        ('{"n": "1"}', Reason.SCHEMA_MISMATCH),
        ('{"n": true}', Reason.SCHEMA_MISMATCH),
        ('{"n": 1, "more": 2}', Reason.SCHEMA_MISMATCH),
        ("{}", Reason.SCHEMA_MISMATCH),
        ("[]", Reason.SCHEMA_MISMATCH),
    ],
)
def test_check_names_what_is_wrong(text: str, code: Reason) -> None:
    with pytest.raises(RowFinal) as wrong:
        LabelCheck(plain_spec(n={"type": "number"})).label(text)
    assert (wrong.value.outcome, wrong.value.code) == (Outcome.INVALID, code)


@pytest.mark.parametrize("text", ['{"s": "a\\u0000b"}', '{"s": "\\ud83d"}', '{"s": "a\ud83db"}'])
def test_characters_that_postgres_cannot_store_are_flagged(text: str) -> None:
    with pytest.raises(RowFinal) as wrong:
        LabelCheck(plain_spec(s={"type": "string"})).label(text)
    assert wrong.value.code == Reason.BAD_CHARACTERS


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        ("date-time", "2024-05-01T12:00:00+05:30", "2024-05-01T12:00:00+23:59"),  # no offset of Postgres
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "1234_678-1234-1234-1234-123456789012"),
        ("uuid", "123E4567-E89B-12D3-A456-426614174000", "+23e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_what_a_typed_column_would_refuse_is_no_label(shape: str, good: str, bad: str) -> None:
    check = LabelCheck(plain_spec(f={"type": "string", "format": shape}))
    assert check.label(f'{{"f": "{good}"}}') == {"f": good}
    with pytest.raises(RowFinal) as wrong:
        check.label(f'{{"f": "{bad}"}}')
    assert wrong.value.code == Reason.SCHEMA_MISMATCH


def test_a_number_beyond_a_double_is_no_label() -> None:
    with pytest.raises(RowFinal):
        LabelCheck(plain_spec(n={"type": "number"})).label('{"n": 1' + "0" * 400 + "}")


def test_a_pattern_that_backtracks_for_ever_costs_only_its_row() -> None:
    check = LabelCheck(plain_spec(s={"type": "string", "pattern": "^(a|aa)+$"}))
    assert check.label('{"s": "aaaa"}') == {"s": "aaaa"}
    with pytest.raises(RowFinal) as wrong:
        check.label('{"s": "' + "a" * 200 + '!"}')
    assert wrong.value.code == Reason.SCHEMA_MISMATCH


def test_a_validator_that_fails_in_its_own_way_costs_only_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(BaseModel):
        @model_validator(mode="after")
        def fails(self) -> "Odd":
            raise KeyError("not there")

    monkeypatch.setattr(LabelSpec, "model_class", lambda _: Odd)
    with pytest.raises(RowFinal) as wrong:
        LabelCheck(plain_spec(n={"type": "number"})).label('{"n": 1}')
    assert wrong.value.code == Reason.SCHEMA_MISMATCH
    assert "KeyError" in wrong.value.reason


def test_a_whole_number_written_as_a_fraction_is_none() -> None:
    check = LabelCheck(plain_spec(n={"type": "integer"}))
    assert check.label('{"n": 3}') == {"n": 3}
    with pytest.raises(RowFinal):
        check.label('{"n": 3.0}')


def test_raw_line_ends_and_tabs_in_a_string_are_taken() -> None:
    assert LabelCheck(plain_spec(s={"type": "string"})).label('{"s": "a\n\tb"}') == {"s": "a\n\tb"}


def test_a_date_that_is_none_is_caught_before_a_typed_view_reads_it() -> None:
    check = LabelCheck(plain_spec(day={"type": "string", "format": "date"}))
    assert check.label('{"day": "2024-02-29"}') == {"day": "2024-02-29"}
    with pytest.raises(RowFinal):
        check.label('{"day": "2023-02-29"}')


def test_raw_output_and_reason_of_a_final_row_can_be_stored() -> None:
    row = final_row(3, RowFinal(Outcome.INVALID, Reason.NOT_JSON, "bad \x00"), raw_output="\ud800\x00")
    assert (row.raw_output, row.reason) == ("\ufffd\ufffd", "bad \ufffd")


@pytest.mark.parametrize(
    ("step", "good", "bad"),
    [(0.01, [0, 19.99, 0.07, 1e300, -2], [0.001, 19.995]), (5, [10, -5, 10.0, 1e300], [7, 2.5]), (2.5, [5, 7.5], [1])],
)
def test_multiples_are_those_of_decimal_numbers(step: float, good: list[float], bad: list[float]) -> None:
    check = LabelCheck(plain_spec(a={"type": "number", "multipleOf": step}))
    assert [check.label(json.dumps({"a": value})) for value in good] == [{"a": value} for value in good]
    for value in bad:
        with pytest.raises(RowFinal, match=r"\$\.a: .* is not a multiple of"):
            check.label(json.dumps({"a": value}))
