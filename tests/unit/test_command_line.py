"""What is printed is text, and what a command is given is something."""

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
import pytest
import typer

from producer.cli import COMMANDS as producer_commands
from producer.cli import main as producer_main
from producer.cli.output import note, say, say_text
from producer.cli.tables import show_table
from schemas.commands import empty_argument
from schemas.printable import log_printable, printable
from worker.cli import COMMANDS as worker_commands
from worker.cli import main as worker_main

#: Clears the screen, goes back over the line, rings, names the window, and turns what follows around.
EVIL = "a\x1b[2J\rb\x07\x9b1A\x1b]0;t\x07\u202ec\u2028d"
ESCAPED = r"a\x1b[2J\rb\x07\x9b1A\x1b]0;t\x07\u202ec\u2028d"


def test_controls_are_escaped_and_everything_else_stays() -> None:
    assert printable(EVIL) == ESCAPED
    assert printable("one\ntwo\tthree") == r"one\ntwo\tthree"
    assert printable("one\ntwo\tthree\r\x1b", lines=True) == "one\ntwo\tthree\\r\\x1b"
    plain = "åéß 中文 עברית \u200f 👩‍🔬 ½\xa0é\ufffd"
    assert printable(plain) == printable(plain, lines=True) == plain


def test_everything_that_commands_print_goes_that_way(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    say_text(f"one\n{EVIL}")
    note(EVIL)
    show_table(["name", "other"], [[EVIL, "x"]])
    captured = capsys.readouterr()
    assert captured.err == f"{ESCAPED}\n"
    assert captured.out.count(ESCAPED) == 3
    assert printable(captured.out, lines=True) == captured.out


def test_a_log_is_text_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(log_printable)
    try:
        logging.getLogger("worker.test").warning("row %d: %s", 1, EVIL)
    finally:
        caplog.handler.removeFilter(log_printable)
    assert caplog.messages == [f"row 1: {ESCAPED}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["enqueue", "a.jsonl", "--name", "x y", "--delimiter", "\t", "--where=a=", "-n", "3"], None),
        (["enqueue", "a.jsonl", "--name", ""], "--name is empty"),
        (["enqueue", "a.jsonl", "--name= "], "--name is empty"),
        (["enqueue", "a.jsonl", "--delimiter", ""], "--delimiter is empty"),
        (["preview", "-n", ""], "-n is empty"),
        (["enqueue", "", "--name", "x"], "an argument is empty"),
        ([], None),
    ],
)
def test_an_empty_argument_is_named(arguments: list[str], said: str | None) -> None:
    found = empty_argument(arguments)
    assert found is None if said is None else found is not None and found.startswith(said)


def _options() -> Iterator[Any]:
    """Every option of every command that takes a value."""

    def of(command: click.Command, path: list[str]) -> Iterator[Any]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from of(inner, [*path, name])
        for parameter in command.params:
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False):
                yield path, parameter.opts[0]

    for program, main, commands in (
        ("producer", producer_main, producer_commands),
        ("worker", worker_main, worker_commands),
    ):
        for name in commands:
            command = typer.main.get_command(import_module(f"{program}.cli.{name}").app)
            yield from ((main, *each) for each in of(command, [program, name]))


OPTIONS = [pytest.param(*each, id=" ".join([*each[1], each[2]])) for each in _options()]


def test_the_options_are_found() -> None:
    found = {parameter.id for parameter in OPTIONS}
    assert {"producer enqueue --template", "producer estimate --profile", "worker start --name"} <= found


@pytest.mark.parametrize(("main", "path", "option"), OPTIONS)
def test_an_empty_value_is_no_default(
    main: Any, path: list[str], option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*path, option, ""])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert (left.value.code, captured.out) == (2, "")
    assert captured.err == f"error: {option} is empty: give a value, or leave it out\n"
