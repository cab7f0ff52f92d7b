"""How commands speak: results on stdout, progress and notes on stderr, one JSON object where asked for."""

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from schemas.printable import counted, printable

__all__ = ["JsonFlag", "counted", "duration", "note", "print_json", "say", "say_text", "whole_number"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def say(line: str = "") -> None:
    """One line on stdout, never wrapped; what is no text in it is escaped."""
    typer.echo(printable(line))


def say_text(text: str) -> None:
    """A text of several lines on stdout, as it is but for what is no text."""
    typer.echo(printable(text, lines=True))


def note(line: str) -> None:
    """One line on stderr: for people, beside the result."""
    typer.echo(printable(line), err=True)


def print_json(value: Any, indent: int | None = None) -> None:
    """A value on one line of stdout, or indented for people."""
    typer.echo(json.dumps(value, default=_plain, indent=indent))


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON for {type(value).__name__}")


def whole_number(value: str | int) -> int:
    """Parses an argument, with a message for people."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number") from None


def duration(seconds: float) -> str:
    """``0:42``, ``3:07:09``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
