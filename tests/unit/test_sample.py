from pathlib import Path

from worker.sample import read_sample


def test_what_is_no_document_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "sample.jsonl"
    deep = "[" * 100_000
    file.write_text(
        f'{{"id": 1, "text": "t", "year": 1999}}\n{deep}\n{{"id": 2, "text": " "}}\n[1]\nno JSON\n{{"text": "u"}}\n'
    )
    assert read_sample(file, 9, "text", "id") == [
        {"ordinal": 0, "external_id": "1", "text": "t", "meta": {"year": 1999}},
        {"ordinal": 1, "external_id": "", "text": "u", "meta": {}},
    ]
