"""The progress of a soak, for people: a bar on a terminal, else a line every few seconds."""

import sys
import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from producer.cli.output import duration

#: Seconds between two lines where output goes to no terminal.
LINE_S = 10.0
#: Columns of the bar: short, so that a narrow terminal shows the words.
BAR_COLUMNS = 12


class Display(AbstractContextManager["Display"]):
    """Shows one stage after another."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_COLUMNS),
            TextColumn("{task.fields[words]}"),
        )
        self._bars = Progress(*columns, console=Console(markup=False, highlight=False), disable=not self._terminal)
        self._bar: TaskID | None = None
        self._stage = ""
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._terminal:
            self._bars.console.print(line)
        else:
            print(line, flush=True)

    def begin(self, stage: str, seconds: float | None) -> None:
        """A stage begins that takes so long, if that is known."""
        self._stage, self._began = stage, time.monotonic()
        self._shown = self._began
        if self._bar is not None:
            self._bars.remove_task(self._bar)
        self._bar = self._bars.add_task(stage, total=seconds, words="")
        if not self._terminal:
            self.say(f"{stage} ...")

    def show(self, words: str) -> None:
        """How the stage goes."""
        elapsed = time.monotonic() - self._began
        words = f"{duration(elapsed)}, {words}"
        if self._bar is not None:
            self._bars.update(self._bar, completed=elapsed, words=words)
        if not self._terminal and time.monotonic() - self._shown >= LINE_S:
            self._shown = time.monotonic()
            self.say(f"{self._stage}: {words}")
