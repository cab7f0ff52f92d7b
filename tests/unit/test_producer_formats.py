"""Every format is told by its content and read whole; what can't be read is refused by name."""

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
import os
import sqlite3
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from producer.readers import ReadOptions, delimited, open_reader
from producer.records import Reject
from schemas.errors import UsageError
from schemas.settings import Settings

RECORDS = [{"id": "a", "text": 'first, "quoted"\nline'}, {"id": "b", "text": "zweite"}, {"id": "c", "text": "třetí 漢"}]
SETTINGS = Settings(record_max_bytes=4096)


def read(path: Path | str | list[str], **options: Any) -> list[Any]:
    """The contents of a corpus: objects, and codes of rejects."""
    reader = open_reader(
        [str(one) for one in path] if isinstance(path, list) else str(path), SETTINGS, ReadOptions(**options)
    )
    reader.digest(lambda _: None)
    found = list(reader.records(lambda _: None))
    assert [record.position for record in found] == list(range(len(found)))
    return [record.content.code.value if isinstance(record.content, Reject) else record.content for record in found]


def write_csv(path: Path, encoding: str = "utf-8", **dialect: Any) -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"], **dialect)
        writer.writeheader()
        writer.writerows(RECORDS)
    return path


def write_jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def write_parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pa.Table.from_pylist(RECORDS), path)
    return path


def write_feather(path: Path) -> Path:
    pyarrow.feather.write_feather(pa.Table.from_pylist(RECORDS), str(path))
    return path


def write_arrow_stream(path: Path) -> Path:
    table = pa.Table.from_pylist(RECORDS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return path


def write_sqlite(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE docs (id TEXT, text TEXT)")
        database.executemany("INSERT INTO docs VALUES (:id, :text)", RECORDS)
    return path


def write_json(path: Path) -> Path:
    path.write_text(json.dumps(RECORDS, indent=2, ensure_ascii=False), encoding="utf-8")
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "jsonl": write_jsonl,
    "json": write_json,
    "csv": write_csv,
    "parquet": write_parquet,
    "feather": write_feather,
    "arrow stream": write_arrow_stream,
    "sqlite": write_sqlite,
}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["no_ending", "wrong.jsonl"])
def test_each_format_is_told_by_its_content_under_any_compression(
    tmp_path: Path, kind: str, compression: str, name: str
) -> None:
    path = WRITERS[kind](tmp_path / "plain")
    compressed = tmp_path / name
    compressed.write_bytes(COMPRESSIONS[compression](path.read_bytes()))
    assert read(compressed) == RECORDS


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1250"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_a_dialect_and_an_encoding_are_detected(tmp_path: Path, encoding: str, delimiter: str) -> None:
    records = RECORDS[:2] + [{"id": str(n), "text": f"Příliš žluťoučký kůň {n} úpěl ďábelské ódy"} for n in range(20)]
    path = tmp_path / "table"
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(records)
    assert read(path) == records


def test_what_was_detected_can_be_overruled(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("näme;a,b\nü;c,d\n".encode("cp1252"))
    assert read(path, encoding="cp1252", delimiter="semicolon") == [{"näme": "ü", "a,b": "c,d"}]
    (tmp_path / "twice.csv").write_text("a,b,a\n1,2,3\n")
    assert read(tmp_path / "twice.csv", header=True) == [{"a": "1", "b": "2", "a_3": "3"}]
    assert read(path, encoding="latin-1", delimiter=",", header=False)[0] == {"column_1": "näme;a", "column_2": "b"}


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ("a,b\r1,2\r3,4\r", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ("Report of 2020,,\nall figures,,\n,,\nx,y,z\n1,2,3\n", [{"x": "1", "y": "2", "z": "3"}]),
        (",title\n0,hello\n1,world\n", [{"column_1": "0", "title": "hello"}, {"column_1": "1", "title": "world"}]),
        ("1,2\n3,4\n", [{"column_1": "1", "column_2": "2"}, {"column_1": "3", "column_2": "4"}]),
        ("a,b\n\n1,2\n,\n", [{"a": "1", "b": "2"}]),
        ("Report,\n,\nx,y\nfirst,1\n", [{"x": "first", "y": "1"}]),
        (
            "1,one.json\n2,two.json\n",
            [{"column_1": str(n), "column_2": f"{n_}.json"} for n, n_ in ((1, "one"), (2, "two"))],
        ),
        ("x-1,red\nx-12,blue\n", [{"column_1": "x-1", "column_2": "red"}, {"column_1": "x-12", "column_2": "blue"}]),
        (
            "land,2019,2020\nA,1.5,7\nB,2,8\n",
            [{"land": "A", "2019": "1.5", "2020": "7"}, {"land": "B", "2019": "2", "2020": "8"}],
        ),
        ("A,1999\nB,2001\n", [{"column_1": "A", "column_2": "1999"}, {"column_1": "B", "column_2": "2001"}]),
        ("sep=;\r\na;b,c\r\n1;2,5\r\n", [{"a": "1", "b,c": "2,5"}]),
        ("sep=;\r\n1;2,5\r\n3;4,5\r\n", [{"column_1": "1", "column_2": "2,5"}, {"column_1": "3", "column_2": "4,5"}]),
        ("a,b\n1,2,3\n4\n5,6\n", ["wrong_columns", "wrong_columns", {"a": "5", "b": "6"}]),
        ('a,b\n"x"y,2\n"5",6\n', ["invalid_csv", {"a": "5", "b": "6"}]),
        ('a,b\n"1",2\n3,"never closed\n5,6\n', [{"a": "1", "b": "2"}, "invalid_csv", {"a": "5", "b": "6"}]),
        ('a,b\n1,"open\n3,4\n5,"two\nlines"\n', ["invalid_csv", {"a": "3", "b": "4"}, {"a": "5", "b": "two\nlines"}]),
        ('a,b\n"1",2\n3,"open\n5,"open\n7,8\n', [{"a": "1", "b": "2"}, *["invalid_csv"] * 2, {"a": "7", "b": "8"}]),
        (
            'a,b\n1,2\n\ufeff3,4\n\ufeff"5",6\n7,"x\n\ufeffy"\n',
            [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}, {"a": "5", "b": "6"}, {"a": "7", "b": "x\n\ufeffy"}],
        ),
        ('a\tb\n5" disk\t"never\n6\tx\n', [{"a": '5" disk', "b": '"never'}, {"a": "6", "b": "x"}]),
        ("a,b\nü,caf\udce9\n2,d\n", ["bad_encoding", {"a": "2", "b": "d"}]),
        ("a,b\n1,caf\udce9\n2,d\n", [{"a": "1", "b": "café"}, {"a": "2", "b": "d"}]),
        ("only\nhello\nworld\n", [{"only": "hello"}, {"only": "world"}]),
        (f"a,b\n1,{'x' * 5000}\n2,y\n", ["too_large", {"a": "2", "b": "y"}]),
        ('a,b\n1,"' + "line, with commas\n" * 500 + '"\n2,y\n', ["too_large", {"a": "2", "b": "y"}]),
    ],
)
def test_each_row_of_a_table_is_a_record_or_a_reject(tmp_path: Path, content: str, records: list) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read(path) == records


@pytest.mark.parametrize("rows", [30, 3000], ids=["kept", "too many to keep"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_quote_that_is_not_closed_takes_no_other_row(
    tmp_path: Path, rows: int, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "table.csv"
    texts = [f"words of row {n}" for n in range(rows)]
    bad = [rows // 3, rows // 2, rows - 5]
    lines = [f'{n},"{text}\n' if n in bad else f"{n},{text}\n" for n, text in enumerate(texts)]
    lines[2] = '2,"two\nlines, both of one cell"\n'
    path.write_bytes(compress(("id,text\n" + "".join(lines)).encode()))
    reader = open_reader(str(path), SETTINGS)
    reader.digest(lambda _: None)
    found = list(reader.records(lambda _: None))
    rejects = [record for record in found if isinstance(record.content, Reject)]
    assert [record.line for record in found] == list(range(2, rows + 2))
    assert [record.position for record in rejects] == bad
    assert {record.content.code for record in rejects} == {"invalid_csv"}
    assert [record.content.excerpt for record in rejects] == [lines[n] for n in bad]
    ids = [record.content["id"] for record in found if isinstance(record.content, dict)]
    assert ids == [str(n) for n in range(rows) if n not in bad]


def test_a_search_for_ends_that_are_not_there_comes_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n" + 'x","\n' * 50 + '1,"never closed\n' + "words, words\n" * 400)
    whole = read(path, header=True)
    assert len(whole) == 451
    for limit in ("_REREADS", "_LINES_AGAIN"):
        with monkeypatch.context() as patch:
            patch.setattr(delimited, limit, 1)
            assert read(path, header=True) == whole


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,text\nred,more\nblue,words\n", "header in row 1 ('id', 'text': --no-header if it is a record)"),
        ("id,text\n1,more\n2,words\n", "header in row 1, utf-8"),
        ("1,one\n2,more\n", "no header (--header if the first row names the columns)"),
        ("sep=;\nid;text\n1;more\n", "semicolon, quoted cells, header in row 2"),
    ],
)
def test_a_header_that_may_be_a_record_is_shown(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    (note,) = open_reader(str(path), SETTINGS).notes
    assert words in note


def test_backslashes_before_line_ends_and_tabs_are_escapes(tmp_path: Path) -> None:
    path = tmp_path / "dump.tsv"
    path.write_text("T/0\tdef f():\\\n\\\treturn 1\tf\nT/1\tdef g():\\\n\\\treturn 2\tg\n")
    first, second = read(path)
    assert first == {"column_1": "T/0", "column_2": "def f():\n\treturn 1", "column_3": "f"}
    assert second["column_1"] == "T/1"


def test_rows_are_counted_as_a_spreadsheet_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('id,text\n1,"two\nlines"\n\n2,x\n')
    assert [record.line for record in open_reader(str(path), SETTINGS).records(lambda _: None)] == [2, 4]


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ('[{"a": 1}, {"a": [1, "]"]}]', [{"a": 1}, {"a": [1, "]"]}]),
        ('{"meta": [1, 2], "papers": [{"a": 1}, {"a": 2}], "more": {"x": "}"}}', [{"a": 1}, {"a": 2}]),
        ('{\n"a": 1,\n"b": {"c": "\\""}}', [{"a": 1, "b": {"c": '"'}}]),
        (
            '[{"a": tru}, {"a": 2}, {"a": NaN}, 5, "x", null]',
            ["invalid_json", {"a": 2}, "invalid_json", *["not_an_object"] * 3],
        ),
        ("[]", []),
        ('[{"a": "' + "x" * 5000 + '"}, {"a": 2}]', ["too_large", {"a": 2}]),
        ('[{"ü": "caf\udce9"}, {"a": 2}]', ["bad_encoding", {"a": 2}]),
        ("[" + "[" * 500 + "]" * 500 + "]", ["invalid_json"]),
    ],
)
def test_each_item_of_a_json_document_is_a_record_or_a_reject(
    tmp_path: Path, content: str, records: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    for size in (1, 2, 3, 7, 256 * 1024):  # a block may end anywhere
        monkeypatch.setattr("producer.readers.json_document._READ_CHARS", size)
        assert read(path) == records


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"a": 1}, {"a": "cut', "it ends in the middle of item 2"),
        ('[{"a": 1}, ', "it ends in the middle of item 2"),
        ('[{"a": 1}', "it ends in the middle of item 2"),
        ('[{"a": 1} {"a": 2}]', "no comma or bracket at character 11"),
        ('[{"a": 1}, , {"a": 2}]', "no value at character 12"),
        ('[{"a": 1}] [', "something follows it at character 12"),
        ('{"papers": [{"a": 1}', "it ends in the middle of item 2"),
        ('{"papers": [{"a": 1}] "more"', "no comma or brace at character 23"),
        ('{"papers" [{"a": 1}]}', "no colon at character 11"),
        ('{"a": "' + "x" * 5000 + '"}', "is one object of over 4,096 bytes"),
    ],
)
def test_a_broken_json_document_is_refused_with_the_place(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "corpus.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert words in str(caught.value)


def test_columns_of_every_type_become_json(tmp_path: Path) -> None:
    row = {
        "id": 2**62,
        "flag": True,
        "none": None,
        "share": float("nan"),
        "most": float("inf"),
        "when": date(2020, 2, 29),
        "price": Decimal("1.10"),
        "raw": b"bytes",
        "odd": b"\xff",
        "deep": [{"x": [1, None]}],
    }
    pyarrow.parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    expected = {"share": None, "most": "inf", "when": "2020-02-29", "price": "1.10", "raw": "bytes", "odd": "/w=="}
    assert read(tmp_path / "t.parquet") == [{**row, **expected}]
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute("CREATE TABLE t (i INTEGER, r REAL, b BLOB, n TEXT, bad TEXT)")
        database.execute(
            "INSERT INTO t VALUES (1, 1.5, x'ff', NULL, CAST(x'ff61' AS TEXT)), (2, 2.5, NULL, 'ok', 'fine')"
        )
    assert read(tmp_path / "t.db") == ["bad_encoding", {"i": 2, "r": 2.5, "b": None, "n": "ok", "bad": "fine"}]


def test_parquet_is_read_in_batches_that_fit_its_rows(tmp_path: Path) -> None:
    records = [{"id": n, "text": "x" * 1000} for n in range(5000)]
    pyarrow.parquet.write_table(pa.Table.from_pylist(records), tmp_path / "t.parquet", row_group_size=1700)
    assert read(tmp_path / "t.parquet") == records


def test_a_damaged_columnar_file_is_refused(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="damaged Parquet"):
        read(tmp_path / "cut.parquet")


def test_a_data_set_saved_to_disk_is_read_by_its_state(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    write_arrow_stream(folder / "data-00000-of-00001.arrow")
    (folder / "dataset_info.json").write_text("{}")
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_data_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    assert read(folder) == RECORDS
    (folder / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(UsageError, match=r"flatten_indices\(\)"):
        read(folder)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["saved"]}')
    with pytest.raises(UsageError, match=r"holds several splits: give one of .*saved"):
        read(tmp_path)


def test_a_database_with_several_tables_asks_which(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "t.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('CREATE TABLE "odd ""name" (x)')
        database.execute('INSERT INTO "odd ""name" VALUES (1)')
    with pytest.raises(UsageError, match=r"has 2 tables: name one with --table.*docs, odd"):
        read(path)
    with pytest.raises(UsageError, match="has no table 'nope'"):
        read(path, table="nope")
    assert read(path, table="docs") == RECORDS
    assert read(path, table='odd "name') == [{"x": 1}]
    assert read(path, query="SELECT id FROM docs ORDER BY id DESC LIMIT 1") == [{"id": "c"}]
    for query, words in (
        ("SELECT nope", "no such column"),
        ("DELETE FROM docs", "readonly|must be a SELECT|attempt to"),
    ):
        with pytest.raises(UsageError, match=words):
            read(path, query=query)
    assert read(path, table="docs") == RECORDS


def test_a_workbook_gives_its_only_sheet_with_rows(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    path = tmp_path / "book.xlsx"
    book = openpyxl.Workbook()
    book.active.title = "empty"
    sheet = book.create_sheet("data")
    for row in (["id", "text", "when"], [1, "first", date(2020, 1, 2)], [None, None, None], [2.5, "second", None]):
        sheet.append(row)
    book.save(path)
    first, second = read(path)
    assert (first["id"], first["text"], first["when"][:10]) == (1, "first", "2020-01-02")
    assert second == {"id": 2.5, "text": "second", "when": None}
    book.create_sheet("more").append(["x"])
    book.save(path)
    with pytest.raises(UsageError, match="2 sheets with rows: name one with --sheet"):
        read(path)
    assert read(path, sheet="more", header=False) == [{"column_1": "x"}]
    with pytest.raises(UsageError, match="no sheet 'nope'"):
        read(path, sheet="nope")


def test_a_workbook_may_have_titles_above_its_header(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    path = tmp_path / "book.xlsx"
    book = openpyxl.Workbook()
    for row in (["Report of 2020"], [], ["id", "text"], [1, "first"], [2, "second"]):
        book.active.append(row)
    book.save(path)
    assert read(path) == [{"id": 1, "text": "first"}, {"id": 2, "text": "second"}]
    reader = open_reader(str(path), SETTINGS)
    assert reader.notes == ("format: workbook, sheet Sheet, header in row 3",)
    assert [record.line for record in reader.records(lambda _: None)] == [4, 5]
    book.active.delete_rows(3)
    book.active.delete_rows(1)  # an empty row is the first now
    book.save(path)
    assert read(path) == [{"column_1": 1, "column_2": "first"}, {"column_1": 2, "column_2": "second"}]


def test_text_files_are_documents_under_their_paths(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# A\r\n")
    (folder / "deep" / "b.txt").write_bytes("Á".encode("utf-16"))
    (folder / ".hidden.txt").write_text("no")
    (folder / "_SUCCESS").write_text("no")
    (folder / "long.txt").write_text("x" * 5000)
    (folder / "bad.txt").write_bytes(b"ok \xff" + "é".encode() * 20)
    assert read(folder) == [
        {"path": "a.md", "text": "# A\r\n"},
        "bad_encoding",
        {"path": "deep/b.txt", "text": "Á"},
        "too_large",
    ]


def test_many_files_are_one_corpus(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"part-{n}.jsonl").write_text(json.dumps({"id": n, "text": "t"}) + "\nbroken\n")
    paths = sorted(map(str, tmp_path.glob("*.jsonl")))
    expected = [item for n in range(3) for item in ({"id": n, "text": "t"}, "invalid_json")]
    assert read(paths) == read(str(tmp_path / "part-*.jsonl")) == read(tmp_path) == expected
    reader = open_reader(paths, SETTINGS)
    found = list(reader.records(lambda _: None))
    assert [(record.line, record.source) for record in found][:3] == [
        (1, "part-0.jsonl"),
        (2, "part-0.jsonl"),
        (1, "part-1.jsonl"),
    ]
    (tmp_path / "more.csv").write_text("id,text\n1,t\n")
    with pytest.raises(UsageError, match=r"several formats: csv \(more.csv\), jsonl \(part-0.jsonl\)"):
        read(tmp_path)


def test_an_empty_file_among_others_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b""))
    for corpus in (tmp_path, str(tmp_path / "*.jsonl*")):
        with pytest.raises(UsageError, match="all 2 files are empty"):
            read(corpus)
    write_jsonl(tmp_path / "c.jsonl")
    for corpus in (tmp_path, str(tmp_path / "*.jsonl*"), str(tmp_path / "[ac].jsonl")):
        rejected = 1 if "[" in str(corpus) else 2
        assert read(corpus) == ["empty"] * rejected + RECORDS
    reader = open_reader(str(tmp_path), SETTINGS)
    assert [record.source for record in reader.records(lambda _: None)][:3] == ["a.jsonl", "b.jsonl.gz", "c.jsonl"]
    assert reader.unit == "line"
    (tmp_path / "c.jsonl").rename(tmp_path / "c.txt")
    (tmp_path / "c.txt").write_text("prose")
    assert read(tmp_path / "c.txt") == [{"path": "c.txt", "text": "prose"}]
    assert read(tmp_path)[-1] == {"path": "c.txt", "text": "prose"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("nothing"), "b.jsonl is a link that leads to no file"),
        (lambda path: path.symlink_to(path), "b.jsonl is a link that leads to no file"),
        (os.mkfifo, "b.jsonl is not a regular file"),
    ],
    ids=["dangling link", "link to itself", "pipe"],
)
def test_what_is_no_file_in_a_folder_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    write_jsonl(deep / "a.jsonl")
    make(deep / "b.jsonl")
    for corpus in (tmp_path, f"{tmp_path}/*/*.jsonl", f"{tmp_path}/**/*.jsonl"):
        with pytest.raises(UsageError, match=words):
            read(corpus)
    assert read(f"{tmp_path}/*/a*.jsonl") == RECORDS


def test_a_folder_that_can_not_be_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "deep" / "locked"
    locked.mkdir(parents=True)
    write_jsonl(tmp_path / "a.jsonl")
    write_jsonl(locked / "b.jsonl")
    scandir = os.scandir

    def refuse(path: str = ".") -> Any:  # who runs the tests may be root, whom no rights keep out
        if str(path).rstrip("/") == str(locked):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for corpus in (tmp_path, locked, f"{tmp_path}/**/*.jsonl", f"{tmp_path}/*/*/*.jsonl", f"{locked}/*.jsonl"):
        with pytest.raises(UsageError, match=r"can't read the folder .*locked: Permission denied. Allow it"):
            read(corpus)
    assert read(f"{tmp_path}/*.jsonl") == RECORDS


def test_links_to_folders_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (tmp_path / "elsewhere").mkdir()
    corpus.mkdir()
    write_jsonl(tmp_path / "elsewhere" / "a.jsonl")
    (corpus / "part").symlink_to(tmp_path / "elsewhere")
    assert read(corpus) == RECORDS
    (tmp_path / "elsewhere" / "back").symlink_to(corpus)
    with pytest.raises(UsageError, match="back is a link to a folder that it is in"):
        read(corpus)


def test_a_file_that_is_none_of_a_corpus_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("prose")
    (tmp_path / "b.txt").write_text("prose")
    (tmp_path / "scan.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert str(caught.value).endswith(f"corpus is text. For the others alone give '{tmp_path}/*.txt'")
    assert len(read(f"{tmp_path}/*.txt")) == 2
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").rename(tmp_path / "deep" / "a.txt")
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert str(caught.value).endswith(f"'{tmp_path}/**/*.txt'")
    assert len(read(f"{tmp_path}/**/*.txt")) == 2


def test_what_can_be_read_only_once_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_jsonl(tmp_path / "corpus").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(content))))
    reader = open_reader("-", SETTINGS)
    assert reader.uri == "stdin"
    assert [record.content for record in reader.records(lambda _: None)] == RECORDS
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(content))
    writer.start()
    assert read(pipe) == RECORDS
    writer.join()


def test_a_closed_stdin_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="stdin is closed"):
        read("-")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_without_an_end_is_not_copied(device: str) -> None:
    with pytest.raises(UsageError, match=f"{device} is a device"):
        read(device)


def test_urls_are_fetched_and_their_secrets_kept(tmp_path: Path) -> None:
    import fsspec

    content = write_jsonl(tmp_path / "corpus").read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a.jsonl", content)
    memory.pipe("/bucket/b.jsonl", content)
    assert read("memory://bucket/a.jsonl") == RECORDS
    assert read("memory://bucket") == read("memory://bucket/*.jsonl") == RECORDS * 2
    assert read(f"file://{tmp_path}/corpus") == RECORDS
    for url, words in (
        ("memory://bucket/none.jsonl", "no file memory://bucket/none.jsonl"),
        ("memory://bucket/*.csv", "no file matches"),
        ("nowhere://x", "nowhere"),
    ):
        with pytest.raises(UsageError, match=words):
            read(url)
    from producer.readers.sources import without_secrets

    assert without_secrets("https://me:pass@h/x.csv?sig=key") == "https://h/x.csv"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.pdf", b"%PDF-1.7 ...", "is PDF: take its text out"),
        ("a.bin", bytes(range(256)) * 4, "is binary"),
        ("a.pkl", b"\x80\x04\x95\x00", "is a pickle, which may run code|is a pickle"),
        ("words", b"just a few words\nand another line\n", "give --format"),
        ("empty.gz", gzip.compress(b""), "empty.gz is empty"),
        ("empty.jsonl", b"", "empty.jsonl is empty"),
    ],
)
def test_what_is_no_corpus_is_refused_by_name(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read(tmp_path / name)


def test_archives_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for name, inside, words in (("a.zip", "a.csv", "unpack it"), ("a.docx", "word/document.xml", "a Word document")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(inside, "x")
        with pytest.raises(UsageError, match=words):
            read(tmp_path / name)


@pytest.mark.parametrize(("kind", "module"), [("parquet", "pyarrow"), ("feather", "pyarrow")])
def test_a_missing_library_is_said_with_the_remedy(
    tmp_path: Path, kind: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITERS[kind](tmp_path / "corpus")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"needs the package pyarrow: pip install '?pyarrow"):
        read(path)


def test_the_format_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("just a few words\nand another line\n")
    assert read(path, format="text") == [{"path": "words", "text": "just a few words\nand another line\n"}]
    with pytest.raises(UsageError, match="--format 'xml' is none of"):
        read(path, format="xml")


def test_json_lines_in_utf_16_as_powershell_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in RECORDS), encoding="utf-16")
    assert read(path) == RECORDS


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("huge.jsonl", b'{"id": "a", "text": "', b'"}\n{"id": "b", "text": "t"}\n'),
        ("huge.csv", b'id,text\na,"', b'"\nb,t\n'),
        ("huge.json", b'[{"id": "a", "text": "', b'"},\n{"id": "b", "text": "t"}]'),
    ],
)
@pytest.mark.parametrize("filling", [b"x" * 1_000_000, b"many words in many lines, and commas\n" * 30_000])
def test_a_huge_record_is_never_held_in_memory(
    tmp_path: Path, name: str, before: bytes, after: bytes, filling: bytes
) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(before)
        for _ in range(50):
            file.write(filling if name.endswith("csv") else filling.replace(b"\n", b" "))
        file.write(after)
    tracemalloc.start()
    try:
        found = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == ["too_large", {"id": "b", "text": "t"}]
    assert peak < 10_000_000


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("a\tb\n1\t2\n3\t4\n", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ('a\tb\n1\t"two\nlines"\n3\t4\n', [{"a": "1", "b": "two\nlines"}, {"a": "3", "b": "4"}]),
        ("Dear all,\n\tthis is\nprose.\n", None),
        ("name:\tX\nplace:\tY\n", None),
        ('"never\tclosed\nand\tmore\n', None),
        ('{"a": 1}\nand more\n', None),
    ],
)
def test_a_text_file_is_a_document_unless_each_line_is_a_record(
    tmp_path: Path, content: str, records: list | None
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    assert read(path) == (records or [{"path": "notes.txt", "text": content}])


def test_a_table_that_excel_saved_as_unicode_text_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    for cell in ("plain", "two\nlines"):
        path.write_bytes(f'id\ttext\r\n1\t"{cell}"\r\n'.encode("utf-16"))
        assert read(path) == [{"id": "1", "text": cell}]
    path.write_bytes("Dear all,\r\n\tthis is prose.\r\n".encode("utf-16"))
    assert read(path)[0]["path"] == "table.txt"


def test_numbers_are_said_as_people_do(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"a,b\n1\n2,{'x' * 5000}\n")
    reasons = [record.content.reason for record in open_reader(str(path), SETTINGS).records(lambda _: None)]
    assert reasons[0].startswith("the row has 1 cell, the table 2 columns:")
    assert reasons[1].startswith("the row has over 4,096 bytes")
