"""Whatever records a corpus holds, each comes back as it was written, from JSON as from CSV; and ids stay apart."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from producer.readers import ReadOptions, open_reader
from producer.records import Document, FieldMapping, Reject, made_id, read_record
from schemas.settings import Settings

SETTINGS = Settings()
#: What UTF-8 has; CSV keeps a line end inside of a cell as it is.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
IDS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.lists(TEXTS, max_size=2)
)
NAMES = st.sampled_from(["id", "text", "more", "__all__", "0", ""])
RECORDS = st.fixed_dictionaries(
    {"id": IDS, "text": TEXTS}, optional={"more": st.none() | st.integers() | st.lists(TEXTS, max_size=2)}
)
shared = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


def read(path: Path, **options: Any) -> list[dict | Reject]:
    reader = open_reader(str(path), SETTINGS, ReadOptions(**options))
    reader.digest(lambda _: None)
    return [record.content for record in reader.records(lambda _: None)]


@given(st.lists(RECORDS, min_size=1, max_size=6), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n"]))
@shared
def test_json_lines_come_back_as_they_were_written(folder: Path, records: list, escaped: bool, end: str) -> None:
    path = folder / "corpus.jsonl"
    path.write_bytes("".join(json.dumps(record, ensure_ascii=escaped) + end for record in records).encode())
    assert read(path) == records


@given(st.lists(RECORDS, min_size=1, max_size=6), st.sampled_from([None, 1, 3]))
@shared
def test_a_json_array_comes_back_as_it_was_written(folder: Path, records: list, indent: int | None) -> None:
    path = folder / "corpus.json"
    path.write_text(json.dumps(records, indent=indent))
    assert read(path, format="json") == records


@given(
    st.lists(st.tuples(TEXTS, TEXTS, TEXTS).filter(any), min_size=1, max_size=6),
    st.sampled_from([("comma", ","), ("tab", "\t"), ("semicolon", ";"), ("bar", "|")]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
@shared
def test_csv_comes_back_as_it_was_written(folder: Path, rows: list, delimiter: tuple[str, str], end: str) -> None:
    path = folder / "corpus.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter[1], lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("one", "two", "three"), *rows])
    expected = [dict(zip(("one", "two", "three"), row, strict=True)) for row in rows]
    assert read(path, format="csv", delimiter=delimiter[0], header=True, encoding="utf-8") == expected


@given(
    st.dictionaries(NAMES, st.recursive(IDS, lambda inner: st.dictionaries(NAMES, inner, max_size=3)), max_size=5),
    NAMES.filter("__all__".__ne__) | st.none(),
)
def test_metadata_are_all_that_is_neither_id_nor_text(fields: dict[str, Any], id_field: str | None) -> None:
    made = read_record({**fields, "text": "T"}, FieldMapping(id_field, "text"), 100)
    if isinstance(made, Document) and not made.flags:
        assert json.loads(made.meta) == {n: value for n, value in fields.items() if n not in (id_field, "text")}


@given(st.lists(RECORDS, min_size=2, max_size=8))
def test_ids_are_kept_apart_and_do_not_change(records: list[dict[str, Any]]) -> None:
    mapping = FieldMapping("id", "text")
    by_id: dict[str, Any] = {}
    for record in records:
        made = read_record(record, mapping, 100)
        again = read_record(dict(reversed(record.items())), mapping, 100)
        if isinstance(made, Reject):
            assert not record["text"].strip()
            continue
        assert isinstance(again, Document)
        assert made.external_id == again.external_id
        if "id_made" in made.flags:
            assert made.external_id == made_id(record)
            assert record["id"] is None or not record["id"].strip()
            given_id: Any = record
        else:
            # As text 1 and "1" are one id, and so they are in a file where some rows quote it.
            given_id = (
                record["id"]
                if isinstance(record["id"], str)
                else json.dumps(record["id"], ensure_ascii=False, separators=(",", ":"))
            )
        if "c1_replaced" not in made.flags and "nul_replaced" not in made.flags:
            assert by_id.setdefault(made.external_id, given_id) == given_id
