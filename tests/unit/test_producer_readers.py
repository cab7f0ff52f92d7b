"""JSON Lines as found in the wild: every line that is not blank is one record or one reject, in constant memory."""

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from producer.readers.base import Record
from producer.readers.file import CorpusFile
from producer.readers.jsonl import JsonlReader
from producer.records import Reject
from schemas.errors import GleanerError, UsageError
from schemas.outcomes import RejectCode

MAX_BYTES = 200
OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    max_size=4,
)


def records_of(path: Path, max_bytes: int = MAX_BYTES) -> list[Record]:
    reader = JsonlReader(CorpusFile(str(path)), max_bytes)
    reader.digest(lambda _: None)
    return list(reader.records(lambda _: None))


def read(tmp_path: Path, content: bytes, max_bytes: int = MAX_BYTES) -> list[Record]:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    return records_of(path, max_bytes)


def contents(records: list[Record]) -> list[object]:
    return [record.content.code if isinstance(record.content, Reject) else record.content for record in records]


def test_positions_count_records_and_lines_count_lines(tmp_path: Path) -> None:
    records = read(tmp_path, b'\n{"a": 1}\r\n \t\r\n\nnot json\n{"a": 2}')
    assert [(record.position, record.line) for record in records] == [(0, 2), (1, 5), (2, 6)]
    assert contents(records) == [{"a": 1}, RejectCode.INVALID_JSON, {"a": 2}]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b'{"a": "\xff"}', RejectCode.BAD_ENCODING, "byte 0xff at byte 8"),
        (b"\xfe{\x00", RejectCode.BAD_ENCODING, "byte 0xfe at byte 1"),
        (b'{"a": 1, "b": {"c": 2, "c": 3}}', RejectCode.INVALID_JSON, "the key 'c' stands twice in one object"),
        (b'{"a" : 1, "a" : 1}', RejectCode.INVALID_JSON, "the key 'a' stands twice"),
        (b'{"a": "open', RejectCode.INVALID_JSON, "character 7"),
        (b'{"a": 1} {"a": 2}', RejectCode.INVALID_JSON, "Extra data"),
        (b'{"a": NaN}', RejectCode.INVALID_JSON, "NaN"),
        (b'{"a": ' + b"1" * 5000 + b"}", RejectCode.INVALID_JSON, "over 4,300 digits"),
        (b'{"a": 1e999}', RejectCode.INVALID_JSON, "1e999"),
        (b'{"a": "raw \x00 NUL"}', RejectCode.INVALID_JSON, "control character"),
        (b'{"a": 1}\r{"a": 2}\r', RejectCode.INVALID_JSON, "Extra data"),
        (b"[1]", RejectCode.NOT_AN_OBJECT, "an array"),
        (b"null", RejectCode.NOT_AN_OBJECT, "null"),
        (b'"text"', RejectCode.NOT_AN_OBJECT, 'a string, not an object: make it one, as {"text": ...}'),
        (b"[" * 5_000, RejectCode.INVALID_JSON, "nested too deeply"),
        (b'{"a":' * 1_000 + b"1" + b"}" * 1_000, RejectCode.INVALID_JSON, "nested too deeply"),
        (b'{"a": ' + b"1" * 5_000 + b"}", RejectCode.INVALID_JSON, "digits"),
    ],
)
def test_a_bad_line_is_rejected_and_the_next_one_read(tmp_path: Path, line: bytes, code: str, words: str) -> None:
    records = read(tmp_path, line + b'\n{"ok": 1}\n', max_bytes=10_000)
    assert contents(records) == [code, {"ok": 1}]
    assert isinstance(records[0].content, Reject)
    assert words in records[0].content.reason


def test_a_byte_order_mark_is_skipped_at_the_start_only(tmp_path: Path) -> None:
    assert contents(read(tmp_path, b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')) == [
        {"a": 1},
        RejectCode.INVALID_JSON,
    ]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("excess", [0, 1, 2, 100_000])
def test_a_line_is_too_large_from_the_first_byte_over_the_limit(
    tmp_path: Path, start: bytes, end: bytes, excess: int
) -> None:
    frame = len(b'{"a": ""}')
    line = b'{"a": "' + b"x" * (MAX_BYTES + excess - frame) + b'"}'
    after = b'{"b": 1}\n' if end else b""
    found = contents(read(tmp_path, start + line + end + after))
    assert found == [RejectCode.TOO_LARGE if excess else json.loads(line), *([{"b": 1}] if end else [])]


def test_a_huge_line_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"x" * 50_000_000 + b'\n{"a": 1}\n')
    tracemalloc.start()
    try:
        found = contents(records_of(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [RejectCode.TOO_LARGE, {"a": 1}]
    assert peak < 10_000_000


def test_gzip_is_told_by_its_bytes_and_digested_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "no_ending"
    path.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n'))
    reader = JsonlReader(CorpusFile(str(path)), MAX_BYTES)
    assert reader.digest(lambda _: None) == sha256(path.read_bytes()).hexdigest()
    assert contents(list(reader.records(lambda _: None))) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:20] + b"\x00\xff" + data[22:]])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(damage(gzip.compress(b'{"a": 1}\n' * 50)))
    with pytest.raises(UsageError, match="damaged gzip"):
        records_of(path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_file_that_changed_since_its_digest_is_refused(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(compress(b'{"a": 1}\n'))
    reader = JsonlReader(CorpusFile(str(path)), MAX_BYTES)
    reader.digest(lambda _: None)
    with path.open("ab") as file:
        file.write(compress(b'{"a": 2}\n'))
    with pytest.raises(GleanerError, match="changed while it was read"):
        list(reader.records(lambda _: None))


def test_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in [
        ("missing.jsonl", "no file"),
        ("pipe", "not a regular file"),
        ("", "is a folder"),
        ("nul\x00byte", "null byte"),
    ]:
        with pytest.raises(UsageError, match=words):
            CorpusFile(str(tmp_path / name))


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 1000)
    reader = JsonlReader(CorpusFile(str(path)), MAX_BYTES)
    digested: list[int] = []
    loaded: list[int] = []
    reader.digest(digested.append)
    list(reader.records(loaded.append))
    assert digested[-1] == loaded[-1] == reader.size == 9000


@given(st.lists(OBJECTS, min_size=1, max_size=5), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_objects_come_back_as_they_were_written(tmp_path: Path, objects: list, end: bytes, ascii_only: bool) -> None:
    lines = [json.dumps(item, ensure_ascii=ascii_only).encode() for item in objects]
    records = read(tmp_path, end.join(lines), max_bytes=100_000)
    assert contents(records) == objects
    assert [record.position for record in records] == list(range(len(objects)))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_of_any_bytes_is_one_record_or_reject(tmp_path: Path, lines: list[bytes]) -> None:
    content = b"x" + b"\n".join(lines)  # so that it is neither empty nor gzip
    records = read(tmp_path, content)
    expected = [n for n, line in enumerate(content.split(b"\n"), start=1) if line.strip(b" \t\r\n")]
    assert [record.line for record in records] == expected
    assert [record.position for record in records] == list(range(len(expected)))


def test_each_line_of_a_parser_test_suite_is_read_or_refused_as_it_must_be(shared_corpus: Callable) -> None:
    path = shared_corpus("nasty/17_jsontestsuite_strings.jsonl")
    index = shared_corpus("nasty/17_jsontestsuite_strings.index.txt").read_text().splitlines()
    records = {record.line: record.content for record in records_of(path)}
    lines = path.read_bytes().split(b"\n")
    checked = 0
    for number, label in enumerate(index, start=1):
        name = label.split()[-1]
        if not lines[number - 1].strip(b" \t\r\n"):
            continue
        code = records[number].code if isinstance(records[number], Reject) else None
        checked += 1
        if name.startswith("y_"):
            assert code in (None, RejectCode.NOT_AN_OBJECT), label
        elif name.startswith("n_"):
            assert code in (RejectCode.INVALID_JSON, RejectCode.BAD_ENCODING), label
    assert checked > 100
