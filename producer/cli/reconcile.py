"""``producer reconcile``: the service that keeps jobs going whatever happens to workers and broker."""

import signal
import sys
import threading
from datetime import UTC, datetime
from typing import Annotated

import typer

from producer.cli.output import JsonFlag, note, print_json, say
from producer.reconciler import Act, Reconciler, reconcile_once
from schemas.queue import create_app
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer reconcile --once")
def reconcile(
    once: Annotated[bool, typer.Option("--once", help="One pass instead of one every GLEANER_RECONCILE_S.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Keep jobs going: take chunks back from dead workers, replace lost messages, find poison, end jobs.

    Runs until SIGTERM or Ctrl-C. One is at work at a time; more stand by. Each decision is a line with its reason,
    with --json an object.
    """

    def tell(act: Act) -> None:
        if as_json:
            print_json({"at": datetime.now(UTC), **act.as_json()})
        else:
            say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {act}")
        sys.stdout.flush()

    settings = load_settings()
    with create_app(settings) as broker:
        if once:
            if not reconcile_once(settings, broker, tell):
                note("another reconciler is at work: nothing to do here")
            return
        stop = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: stop.set())
        Reconciler(settings, broker, tell).run(stop, lambda: note("another reconciler is at work: standing by"))
