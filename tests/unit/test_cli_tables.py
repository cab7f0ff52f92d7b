"""Tables line up whatever script is in them, and are cut where the terminal is narrow."""

import pytest

from producer.cli import tables


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_columns_line_up_by_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_table(("corpus", "rows"), [("票据", "1"), ("a", "20")])
    assert shown(capsys) == ["corpus  rows", "票据    1", "a       20"]


def test_a_narrow_terminal_cuts_the_widest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "output_width", lambda: 20)
    tables.show_table(("job", "corpus", "model"), [("123456", "0123456789", "qwen")], cut=("corpus", "model"))
    assert shown(capsys) == ["job     corpus  model", "123456  01234…  qwen"]


def test_what_may_not_be_cut_stays_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "output_width", lambda: 5)
    tables.show_table(("state",), [("cancelling",)])
    assert shown(capsys) == ["state", "cancelling"]


def test_a_pipe_is_wide_and_a_cell_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_table(("corpus", "rows"), [("first\nsecond", "1"), ("", "2"), ("x" * 150, "3")], cut=("corpus",))
    assert shown(capsys)[1:] == [
        r"first\nsecond".ljust(150) + "  1",
        " " * 152 + "2",
        "x" * 150 + "  3",
    ]
