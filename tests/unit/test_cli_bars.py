"""Progress is a bar for people, lines of JSON for machines, and nothing in a pipe."""

import json

import pytest

from producer.cli import bars


def test_progress_for_machines_is_json_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "JSON_LINE_S", 0.0)
    with bars.progress_bar(as_json=True) as progress:
        progress("loading", 5, 10)
        progress("fetching", 7, 0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [json.loads(line) for line in captured.err.splitlines()] == [
        {"stage": "loading", "done": 5, "total": 10},
        {"stage": "fetching", "done": 7, "total": None},
    ]


def test_what_is_done_soon_needs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.progress_bar(as_json=True) as progress:
        progress("loading", 5, 10)
    assert capsys.readouterr().err == ""


def test_progress_is_quiet_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.progress_bar(as_json=False) as progress:
        progress("loading", 5, 10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
