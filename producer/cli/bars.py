"""Progress of long steps on stderr: bars for people, lines of JSON for machines."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from producer.cli.output import note
from producer.progress import Progress as ProgressCallback
from producer.progress import silent

#: Seconds between two redraws of a bar.
REDRAW_S = 0.1
#: Seconds between two lines of progress for machines, and before the first.
JSON_LINE_S = 2.0


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
