"""Documents that do not fit: cut where a token starts, or labelled in parts whose labels are merged."""

from typing import Any

import pytest

from schemas.budget import MAX_PARTS
from schemas.label_spec import LabelSpec
from schemas.outcomes import Outcome, OverLong, Reason, RowFinal
from schemas.settings import Settings
from schemas.user_turn import UserTurn
from worker.check import LabelCheck
from worker.document import prepare
from worker.engine.stub import StubEngine
from worker.over_long import ELLIPSIS, MARGIN_TOKENS, Parts, cut, merge
from worker.row import Row, RowInFlight, RowRules, final_row

TEXT = "".join(f"{n:03d}," for n in range(100))  # 100 tokens of four characters
OFFSETS = list(range(0, 400, 4))


def spec_of(over_long: OverLong = OverLong.REJECT, **properties: Any) -> LabelSpec:
    properties = properties or {"a": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return LabelSpec(name="s", json_schema=schema, system_prompt="Label.", over_long=over_long)


def test_reject_leaves_nothing_to_label() -> None:
    with pytest.raises(RowFinal) as final:
        cut(OverLong.REJECT, TEXT, 1, OFFSETS)
    assert (final.value.outcome, final.value.code) == (Outcome.REJECTED, Reason.OVER_LONG)


@pytest.mark.parametrize(
    ("policy", "begins", "ends"),
    [
        (OverLong.TRUNCATE_TAIL, "000,", "061,"),
        (OverLong.TRUNCATE_HEAD, "038,", "099,"),
        (OverLong.TRUNCATE_MIDDLE, "000,", "099,"),
    ],
)
def test_truncate_keeps_what_its_name_does_not_say(policy: OverLong, begins: str, ends: str) -> None:
    made = cut(policy, TEXT, 30, OFFSETS)
    (text,) = made.texts
    assert text.startswith(begins)
    assert text.endswith(ends)
    assert made.dropped_tokens == 30 + MARGIN_TOKENS
    assert len(text.replace(ELLIPSIS, "")) == 4 * (100 - made.dropped_tokens)
    assert (ELLIPSIS in text) == (policy == OverLong.TRUNCATE_MIDDLE)


def test_split_loses_no_character() -> None:
    made = cut(OverLong.SPLIT, TEXT, 60, OFFSETS)
    assert "".join(made.texts) == TEXT
    assert len(made.texts) == 4
    assert made.dropped_tokens == 0


@pytest.mark.parametrize("policy", list(OverLong))
def test_instructions_that_fill_the_context_are_never_cut(policy: OverLong) -> None:
    with pytest.raises(RowFinal):
        cut(policy, TEXT, 95, OFFSETS)


def test_a_document_of_too_many_parts_is_rejected() -> None:
    long = "word" * 20 * (MAX_PARTS + 2)
    with pytest.raises(RowFinal) as final:
        cut(OverLong.SPLIT, long, len(long) // 4 - 20 - MARGIN_TOKENS, list(range(0, len(long), 4)))
    assert "parts" in final.value.reason


def prepared(policy: OverLong, text: str, max_model_len: int = 120) -> list[Row | RowInFlight]:
    spec = spec_of(policy)
    engine = StubEngine(Settings(engine="stub", max_model_len=max_model_len))
    rules = RowRules(spec, LabelCheck(spec), max_model_len, max_tries=1, seed=0)
    document = {"ordinal": 7, "external_id": "x", "text": text, "meta": {}}
    return list(prepare(engine, rules, UserTurn(spec), [document]))


def test_a_truncated_document_fits_and_says_what_was_dropped() -> None:
    (row,) = prepared(OverLong.TRUNCATE_TAIL, "word" * 200)
    assert isinstance(row, RowInFlight)
    assert row.request().prompt.size <= 120
    done = row.fail(RowFinal(Outcome.REJECTED, Reason.REFUSED, "x"), 0)
    assert done is not None
    assert done.dropped_tokens >= 80


def test_a_rejected_row_says_what_the_context_is_kept_for() -> None:
    (row,) = prepared(OverLong.REJECT, "word" * 200)
    assert isinstance(row, Row)
    reserved = spec_of().reserved_output_tokens
    assert row.reason is not None
    assert row.reason.endswith(
        f"; of the model's context of 120 tokens {reserved} are kept for the longest label of this schema"
    )


def test_a_split_document_ends_in_one_row_of_all_its_parts() -> None:
    rows = prepared(OverLong.SPLIT, "word" * 200)
    assert len(rows) > 1
    ends: list[Row | None] = []
    for row in reversed(rows):  # parts end in any order
        assert isinstance(row, RowInFlight)
        assert row.collect is not None
        ends.append(row.collect(Row(7, Outcome.OK, label={"a": True}, prompt_tokens=10, output_tokens=2, tries=1)))
    *early, last = ends
    assert early == [None] * (len(rows) - 1)
    assert last is not None
    assert (last.ordinal, last.outcome, last.label, last.parts) == (7, Outcome.OK, {"a": True}, len(rows))
    assert (last.prompt_tokens, last.tries) == (10 * len(rows), len(rows))


def test_parts_of_white_space_are_left_out() -> None:
    rows = prepared(OverLong.SPLIT, "word" * 100 + " " * 800)
    assert all(isinstance(row, RowInFlight) for row in rows)


def test_a_split_row_ends_as_its_first_part_that_is_not_ok() -> None:
    spec = spec_of()
    parts = Parts(1, 2, spec, LabelCheck(spec))
    assert parts.add(1, final_row(1, RowFinal(Outcome.INVALID, Reason.NOT_JSON, "bad"), raw_output="{")) is None
    row = parts.add(0, Row(1, Outcome.OK, label={"a": True}))
    assert row is not None
    assert (row.outcome, row.reason_code, row.raw_output) == (Outcome.INVALID, Reason.NOT_JSON, "{")
    assert row.reason == "part 2 of 2: bad"


def test_labels_are_merged_field_by_field() -> None:
    spec = spec_of(
        kind={"enum": ["x", "y"]},
        flag={"type": "boolean"},
        tags={"type": "array", "items": {"type": "string"}, "maxItems": 3},
        note={"type": "string", "maxLength": 9},
    )
    labels = [
        {"kind": "y", "flag": True, "tags": ["a", "b"], "note": ""},
        {"kind": "x", "flag": False, "tags": ["b", "c"], "note": "first"},
        {"kind": "x", "flag": True, "tags": ["d"], "note": "second"},
    ]
    assert merge(spec, labels) == {"kind": "x", "flag": True, "tags": ["a", "b", "c"], "note": "first"}
    assert merge(spec, labels[:2])["kind"] == "y"
