"""``producer watch``: a job's progress until it ends."""

import sys
import time
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Any, Protocol

import psycopg
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from producer.cli.output import JsonFlag, duration, note, print_json, say, whole_number
from producer.serving import unserved
from producer.standing import newest_job, state_note
from producer.watching import STALL_S, Reading, Watcher
from schemas.database import connect
from schemas.errors import GleanerError
from schemas.outcomes import Outcome
from schemas.printable import printable
from schemas.settings import Settings, load_settings

#: Seconds between two lines where output goes to no terminal: a log should not be flooded.
LINE_S = 5.0

app = typer.Typer(add_completion=False)


class _Display(AbstractContextManager["_Display"], Protocol):
    """How readings are shown."""

    def show(self, reading: Reading, elapsed_s: float) -> None:
        """Show a reading."""

    def tell(self, message: str) -> None:
        """Show a message between readings."""


@app.command(epilog="Example: producer watch 1")
def watch(
    job: Annotated[
        int | None,
        typer.Argument(parser=whole_number, metavar="JOB", help="Job id. Default: the newest job.", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to watch at most; exit 1 if the job has not ended then.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a job's progress until it is done (exit 0) or cancelled (exit 1). Watching changes nothing.

    With --json one object a line, whenever something has changed.
    """
    began = time.monotonic()
    stalled, told = False, None
    settings = load_settings()
    if job is None:
        with connect(settings, "producer watch") as connection:
            job = newest_job(connection)
    asked = False
    with _display(job, as_json) as display:
        for reading in Watcher(settings, job, display.tell).readings():
            elapsed = time.monotonic() - began
            # Of a job that has ended its own time counts, however long it was watched.
            display.show(reading, reading.running_s if reading.ended and reading.running_s is not None else elapsed)
            standing = None if reading.ended else state_note(job, reading.state, reading.state_reason)
            if standing is not None and standing != told:
                display.tell(standing)
            told = standing
            if not asked and not reading.ended and (nobody := _unserved(settings, reading.model)):
                display.tell(nobody)
            asked = True
            if timeout is not None and elapsed >= timeout and not reading.ended:
                raise GleanerError(f"job {job} has not ended in {timeout:g} s: {_counts(reading)}. It goes on.")
            if reading.stalled and not stalled:
                why = _unserved(settings, reading.model) or f"is a worker for model {reading.model} running?"
                display.tell(f"no row for {STALL_S:.0f} s: {why}")
            stalled = reading.stalled
    if reading.state == "cancelled":
        raise GleanerError(f"job {job} was cancelled: {_counts(reading)}.")


def _unserved(settings: Settings, model: str) -> str | None:
    try:
        with connect(settings, "producer watch") as connection:
            return unserved(connection, settings, model)
    except (GleanerError, psycopg.Error):  # the watcher itself says so
        return None


def _display(job: int, as_json: bool) -> _Display:
    if as_json:
        return _JsonLines()
    return _Bar(job) if sys.stdout.isatty() else _Lines(job)


def _counts(reading: Reading) -> str:
    return f"{reading.rows:,} of {reading.ledger['total']:,} rows, {reading.ledger[Outcome.OK]:,} ok"


def _rate(reading: Reading) -> str:
    if reading.measuring:
        return "measuring rows/s"
    if not reading.rate:
        return "nothing labelled" if reading.ended else "waiting for rows"
    left = "" if reading.eta_s is None or reading.ended else f", {duration(reading.eta_s)} left"
    return f"{reading.rate:,.1f} rows/s{left}"


class _JsonLines(AbstractContextManager["_JsonLines"]):
    """One JSON object a line on stdout, whenever the state or a count has changed."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, reading: Reading, elapsed_s: float) -> None:
        counts = {"state": reading.state, **reading.ledger}
        if counts != self._last:
            self._last = counts
            eta = None if reading.eta_s is None else round(reading.eta_s, 1)
            print_json({**counts, "rows_per_s": round(reading.rate, 2), "eta_s": eta, "elapsed_s": round(elapsed_s, 1)})
            sys.stdout.flush()

    def tell(self, message: str) -> None:
        note(message)


class _Lines(AbstractContextManager["_Lines"]):
    """A plain line every few seconds, for logs."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._next = 0.0

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, reading: Reading, elapsed_s: float) -> None:
        if elapsed_s >= self._next or reading.ended:
            self._next = elapsed_s + LINE_S
            say(f"job {self._job} {reading.state}: {_counts(reading)}, {_rate(reading)}, {duration(elapsed_s)} elapsed")
            sys.stdout.flush()

    def tell(self, message: str) -> None:
        note(message)


class _Bar(AbstractContextManager["_Bar"]):
    """A progress bar on a terminal; the line that it leaves says how the job ended."""

    def __init__(self, job: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
        self._progress = Progress(*columns, console=Console(markup=False, highlight=False))
        self._task = self._progress.add_task(f"job {job}", total=None, words="")
        self._job = job
        self._stack = ExitStack()

    def __enter__(self) -> "_Bar":
        self._stack.enter_context(self._progress)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, reading: Reading, elapsed_s: float) -> None:
        ok = f"{reading.ledger[Outcome.OK] / reading.rows:.0%} ok" if reading.rows else "none ok yet"
        self._progress.update(
            self._task,
            description=f"job {self._job} {reading.state}",
            total=reading.ledger["total"],
            completed=reading.rows,
            words=f"{reading.rows:,}/{reading.ledger['total']:,}, {ok}, {_rate(reading)}, {duration(elapsed_s)}",
        )

    def tell(self, message: str) -> None:
        self._progress.console.print(printable(message))
