"""Real corpora through the CLI: whole files with the counts they are known to have, and files as found in the wild,
each read right or refused by name. Files of the same kinds, made here, hold where the real ones are missing."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from schemas.database import Connection


@pytest.fixture
def enqueue(call_cli: Callable) -> Callable[..., dict[str, Any]]:
    """Enqueues and returns the summary."""

    def call(*args: str | Path) -> dict[str, Any]:
        done = call_cli("enqueue", *args, "--schema", "papers", "--json")
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    return call


@pytest.fixture
def refused(call_cli: Callable, database: Connection) -> Callable[..., str]:
    """Enqueues what must be refused; returns the error."""

    def call(*args: str | Path) -> str:
        done = call_cli("enqueue", *args, "--schema", "papers")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1
        assert database.execute("SELECT 1 FROM gleaner.corpora").fetchone() is None
        return str(done.stderr)

    return call


def documents(database: Connection) -> list[dict[str, Any]]:
    return database.execute(
        "SELECT external_id, text, meta, flags FROM gleaner.documents ORDER BY corpus_id DESC, ordinal"
    ).fetchall()


@pytest.mark.parametrize(
    ("name", "count", "options", "fields"),
    [
        ("debian.jsonl.gz", 24_705, [], ["id field: 'id'", "text field: 'text'"]),
        ("arxiv_titled.jsonl", 1_498, [], ["id field: 'id'", "text field: 'abstract'"]),
        ("arxiv_titled.jsonl", 1_498, ["--text", r"{title}\n\n{abstract}"], ["id field: 'id'"]),
        ("arxiv_multiyear.jsonl", 990, [], ["id field: 'id'", "text field: 'abstract'"]),
        ("scaling_pool.jsonl", 112, [], ["text field: 'abstract'"]),
        ("banking77.jsonl", 1_529, [], ["text field: 'text'"]),
        ("nlupp_extract.jsonl", 1_388, [], ["text field: 'text'"]),
    ],
)
def test_every_corpus_is_loaded_whole(
    enqueue: Callable, shared_corpus: Callable, name: str, count: int, options: list[str], fields: list[str]
) -> None:
    summary = enqueue(shared_corpus(name), *options)
    assert (summary["documents"], summary["rejected"]) == (count, 0)
    assert set(fields) <= set(summary["notes"])


# -- 01: line ends and doubled quotes in cells -------------------------------------------------------------------------


def test_01_a_csv_of_multi_line_abstracts(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    summary = enqueue(shared_corpus("nasty/01_arxiv_multiline_quoted.csv"))
    assert summary["documents"] + summary["rejects"].get("duplicate_id", 0) == 1_000
    assert set(summary["rejects"]) <= {"duplicate_id"}
    assert "text field: 'summaries'" in summary["notes"]
    assert any("\n" in row["text"] for row in documents(database))


def test_01_twin(enqueue: Callable, tmp_path: Path, database: Connection) -> None:
    path = tmp_path / "twin.csv"
    path.write_text('title,summaries\nOne,"It is called ""one"",\nand goes on."\n"Two, too",short\n')
    assert enqueue(path)["documents"] == 2
    assert [row["text"] for row in documents(database)] == ['It is called "one",\nand goes on.', "short"]


# -- 03: UTF-16 with a byte order mark ---------------------------------------------------------------------------------


def test_03_a_csv_in_utf_16(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    path = shared_corpus("nasty/03_nhs_utf16le_bom.csv")
    summary = enqueue(path, "--text-field", "Organisation_name")
    assert (summary["documents"], summary["rejected"]) == (327, 0)
    assert "utf-16" in summary["notes"][0]
    assert all("\ufeff" not in name and "\x00" not in name for row in documents(database) for name in row["meta"])


def test_03_twin(enqueue: Callable, tmp_path: Path, database: Connection) -> None:
    path = tmp_path / "twin.csv"
    path.write_text("code,name\nA1   ,Åre   \nB2   ,Ystad \n", encoding="utf-16")
    assert enqueue(path, "--id-field", "code", "--text-field", "name")["documents"] == 2
    assert [(row["external_id"], row["text"]) for row in documents(database)] == [
        ("A1   ", "Åre   "),
        ("B2   ", "Ystad "),
    ]


# -- 05: CR alone ends a line, titles above the header -----------------------------------------------------------------


def test_05_a_csv_with_titles_above_its_header(
    enqueue: Callable, shared_corpus: Callable, database: Connection
) -> None:
    path = shared_corpus("nasty/05_nasa_gistemp_cr_only.csv")
    summary = enqueue(path, "--id-field", "Year", "--text", "{Year}: {J-D}")
    assert "header in row 4" in summary["notes"][0]
    years = [row["external_id"] for row in documents(database)]
    assert years[:2] == ["1880", "1881"]
    assert len(years) == summary["documents"] >= 130
    assert set(summary["rejects"]) <= {"duplicate_id"}


def test_05_twin(enqueue: Callable, tmp_path: Path, database: Connection) -> None:
    path = tmp_path / "twin.csv"
    path.write_bytes(b"Rain in mm,,\rstation 7,,\r,,\ryear,wet,dry\r1990,1,2\r1991,3,4\r")
    assert enqueue(path, "--id-field", "year", "--text", "{wet} and {dry}")["documents"] == 2
    assert [(row["external_id"], row["text"]) for row in documents(database)] == [
        ("1990", "1 and 2"),
        ("1991", "3 and 4"),
    ]


# -- 07: no quotes, backslashes before line ends and tabs --------------------------------------------------------------


def test_07_a_tsv_with_escaped_line_ends(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    path = shared_corpus("nasty/07_humaneval_backslash_newline.tsv")
    summary = enqueue(path, "--id-field", "column_1", "--text-field", "column_2")
    assert (summary["documents"], summary["rejected"]) == (10, 0)
    found = documents(database)
    assert [row["external_id"] for row in found] == [f"HumanEval/{n}" for n in range(10)]
    assert found[0]["text"].startswith("from typing import List\n\n\ndef has_close_elements(")
    assert "\\\n" not in found[0]["text"]


# -- 10, 12: Parquet ---------------------------------------------------------------------------------------------------


def test_10_nested_lists_stay_nested(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    summary = enqueue(shared_corpus("nasty/10_nested_lists_snappy.parquet"), "--text", "number {b}")
    assert (summary["documents"], summary["rejected"]) == (3, 0)
    assert documents(database)[0]["meta"] == {"a": [[["a", "b"], ["c"]], [None, ["d"]]], "b": 1}


def test_10_a_list_is_no_text(refused: Callable, shared_corpus: Callable) -> None:
    error = refused(shared_corpus("nasty/10_nested_lists_snappy.parquet"), "--text-field", "a")
    assert "3 text_not_string" in error


def test_12_long_cells_are_read_whole(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    path = shared_corpus("nasty/12_reasoning_long_latex_json_in_string.parquet")
    summary = enqueue(path, "--text-field", "gemini_thinking_trajectory")
    assert (summary["documents"], summary["rejected"]) == (5, 0)
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["text"] for row in documents(database)] == [row["gemini_thinking_trajectory"] for row in table]
    assert [row["meta"]["metadata"] for row in documents(database)] == [row["metadata"] for row in table]


def test_10_and_12_twin(enqueue: Callable, tmp_path: Path, database: Connection) -> None:
    records = [
        {"id": n, "text": "$\\frac{1}{2}$ " * 1000, "deep": [[None, ["x"]], None], "more": "{'a': 1}"} for n in range(3)
    ]
    pyarrow.parquet.write_table(pa.Table.from_pylist(records), tmp_path / "twin.parquet")
    assert enqueue(tmp_path / "twin.parquet")["documents"] == 3
    found = documents(database)
    assert [row["text"] for row in found] == [record["text"] for record in records]
    assert found[0]["meta"] == {"deep": [[None, ["x"]], None], "more": "{'a': 1}"}


# -- 14a: a long text --------------------------------------------------------------------------------------------------


def test_14_a_book_is_one_document(enqueue: Callable, shared_corpus: Callable, database: Connection) -> None:
    path = shared_corpus("nasty/14a_alice_utf8_bom_crlf.txt")
    assert enqueue(path)["documents"] == 1
    (found,) = documents(database)
    assert found["text"] == path.read_bytes().decode("utf-8-sig")
    assert found["external_id"] == path.name


# -- 15, 19: JSON documents that are no corpus -------------------------------------------------------------------------


def test_15_a_reply_that_was_cut_is_refused(refused: Callable, shared_corpus: Callable) -> None:
    error = refused(shared_corpus("nasty/15_llm_response_truncated_u0000.json"))
    assert "is no whole JSON document: it ends in the middle of item 7. Nothing was kept." in error


def test_15_twin(refused: Callable, tmp_path: Path) -> None:
    path = tmp_path / "twin.json"
    path.write_text(
        '{\n  "papers": [\n    {"id": 1, "text": "whole"},\n    {"id": 2, "text": "' + "\\u0000" * 9000 + "\\"
    )
    assert "it ends in the middle of item 2" in refused(path)


def test_19_strings_are_no_records(refused: Callable, shared_corpus: Callable) -> None:
    path = shared_corpus("nasty/19_big_list_of_naughty_strings.json")
    count = len(json.loads(path.read_bytes()))
    assert f"({count} not_an_object)" in refused(path)


def test_19_the_same_strings_as_texts(
    enqueue: Callable, shared_corpus: Callable, tmp_path: Path, database: Connection
) -> None:
    strings = json.loads(shared_corpus("nasty/19_big_list_of_naughty_strings.json").read_bytes())
    path = tmp_path / "naughty.json"
    path.write_text(json.dumps([{"id": n, "text": text} for n, text in enumerate(strings)]))
    summary = enqueue(path)
    empty = sum(not text.strip() for text in strings)
    assert summary["documents"] == len(strings) - empty
    assert summary["rejects"] == {"empty": empty}
    for row in documents(database):
        if not row["flags"]:
            assert row["text"] == strings[int(row["external_id"])]


# -- 17: a parser's test suite -----------------------------------------------------------------------------------------


def test_17_each_line_is_read_or_refused(refused: Callable, shared_corpus: Callable) -> None:
    path = shared_corpus("nasty/17_jsontestsuite_strings.jsonl")
    assert "which field holds the text is not obvious" in refused(path)
    error = refused(path, "--text-field", json.loads('"\\udfaa"'))
    for code in ("invalid_json", "bad_encoding", "not_an_object"):
        assert code in error


# -- 20: JSON Lines that are not quite -------------------------------------------------------------------------------

#: Each file with its documents, and the codes of its rejects.
_NDJSON = {
    "duplicate_key": (["1", "2", "4", "5"], {"invalid_json": 1}),
    "example_rn": (["1", "2", "3", "4", "5"], {}),
    "inconsistent_schemas": (["2", "[3]", "4", "5"], {"missing_text": 1}),
    "unterminated_quotes": (["1", "2", "4", "5"], {"invalid_json": 1}),
}
_FILMS = [(1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, "five")]
_LINES = [f'{{"id":{n},"name":"{name}"}}' for n, name in _FILMS]
_NDJSON_TWINS = {
    "duplicate_key": "\n".join([*_LINES[:2], '{"id":3,"id":42,"name":"three"}', *_LINES[3:]]),
    "example_rn": "\r\n".join(_LINES),
    "inconsistent_schemas": "\n".join(['{"id":"1","name":null}', _LINES[1], '{"id":[3],"name":"three"}', *_LINES[3:]]),
    "unterminated_quotes": "\n".join([*_LINES[:2], '{"id":3,"name":"three}', *_LINES[3:]]),
    "example_r": "\r".join(_LINES),
    "multiple_objects_per_line": "".join(_LINES) + "\n",
}


@pytest.mark.parametrize("name", _NDJSON)
@pytest.mark.parametrize("real", [True, False])
def test_20_good_lines_are_read_and_bad_ones_named(
    enqueue: Callable, shared_corpus: Callable, tmp_path: Path, database: Connection, name: str, real: bool
) -> None:
    path = tmp_path / "twin.ndjson"
    path.write_bytes(_NDJSON_TWINS[name].encode())
    summary = enqueue(
        shared_corpus(f"nasty/20_ndjson/{name}.ndjson") if real else path, "--id-field", "id", "--text-field", "name"
    )
    ids, rejects = _NDJSON[name]
    assert [row["external_id"] for row in documents(database)] == ids
    assert summary["rejects"] == rejects


@pytest.mark.parametrize("name", ["example_r", "multiple_objects_per_line"])
@pytest.mark.parametrize("real", [True, False])
def test_20_several_objects_on_a_line_are_refused(
    refused: Callable, shared_corpus: Callable, tmp_path: Path, name: str, real: bool
) -> None:
    path = tmp_path / "twin.ndjson"
    path.write_bytes(_NDJSON_TWINS[name].encode())
    error = refused(
        shared_corpus(f"nasty/20_ndjson/{name}.ndjson") if real else path, "--id-field", "id", "--text-field", "name"
    )
    assert "1 invalid_json" in error
    assert "a line must hold one object and end with a line feed" in error


def test_a_folder_of_compressed_parts_is_one_corpus(enqueue: Callable, tmp_path: Path, database: Connection) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for n in range(3):
        lines = json.dumps({"id": n, "text": f"text {n}"}) + "\n" + json.dumps({"id": 0, "text": "again"}) + "\n"
        (folder / f"part-{n}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    summary = enqueue(folder, "--id-field", "id")
    assert (summary["corpus"], summary["documents"], summary["rejects"]) == ("parts", 3, {"duplicate_id": 3})
    found = database.execute("SELECT line, source, reason FROM gleaner.corpus_rejects ORDER BY position").fetchall()
    assert found[0] == {
        "line": 2,
        "source": "part-0.jsonl.gz",
        "reason": "the id '0' is that of line 1 of part-0.jsonl.gz already",
    }
    assert found[2]["source"] == "part-2.jsonl.gz"
