"""How commands speak: results on stdout, progress and notes on stderr, one JSON object where asked for."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from producer.progress import Progress as ProgressCallback
from producer.progress import silent
from schemas.command_line import printable

#: Columns where output goes to no terminal: wide enough that no table is cut.
PIPE_WIDTH = 200
#: Seconds between two redraws of a bar.
REDRAW_S = 0.1
#: Seconds between two lines of progress for machines, and before the first.
JSON_LINE_S = 2.0

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)


class _Table(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def console() -> Console:
    """Stdout, for people. Text is printed as it is: names and documents are not markup, nor anything to a terminal."""
    return _Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


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


def table(*columns: str, folded: tuple[str, ...] = ()) -> Table:
    """A table without lines.

    :param folded: columns that go over several lines where the terminal is narrow; the others stay whole.
    """
    lines = _Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        lines.add_column(column, no_wrap=column not in folded, overflow="fold" if column in folded else "ellipsis")
    return lines


def whole_number(value: str | int) -> int:
    """Parses an argument, with a message for people."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number") from None


def counted(count: int, noun: str) -> str:
    """``1 chunk``, ``2,000 chunks``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """``0:42``, ``3:07:09``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def progress_bar(as_json: bool) -> Iterator[ProgressCallback]:
    """A bar a stage on stderr, if it is a terminal; with ``as_json`` a JSON object a line there, for machines."""
    if as_json:
        yield _json_lines()
        return
    if not sys.stderr.isatty():
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        stages: dict[str, TaskID] = {}
        drawn = 0.0

        def show(stage: str, done: int, total: int) -> None:
            nonlocal drawn
            now = time.monotonic()
            if stage in stages and done < total and now - drawn < REDRAW_S:
                return
            drawn = now
            task = stages.get(stage)
            if task is None:
                task = stages[stage] = bars.add_task(stage.ljust(len("publishing")), total=total or None)
            bars.update(task, completed=done, total=total or None)

        yield show


def _json_lines() -> ProgressCallback:
    """Writes a line every few seconds: what is done sooner needs none."""
    written = time.monotonic()

    def show(stage: str, done: int, total: int) -> None:
        nonlocal written
        now = time.monotonic()
        if now - written >= JSON_LINE_S:
            written = now
            note(json.dumps({"stage": stage, "done": done, "total": total or None}))

    return show
