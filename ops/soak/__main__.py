"""``python -m ops.soak``; ``make soak`` calls it."""

import json
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from ops.soak.display import Display
from ops.soak.faults import FAULTS
from ops.soak.soak import Plan, Soak
from schemas.env_files import ENV_PREFIX
from schemas.errors import GleanerError

#: Documents a minute, unless said otherwise: a little over 200,000 in half an hour.
DOCUMENTS_A_MINUTE = 6_800
#: Signals that bring the soak to an early end.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m ops.soak --minutes 2 --seed 7")
def soak(
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes with faults.")] = 30,
    documents: Annotated[
        int | None,
        typer.Option(
            min=100, help=f"Documents at least; sets the engines' speed. Default: {DOCUMENTS_A_MINUTE:,} a minute"
        ),
    ] = None,
    poison: Annotated[int, typer.Option(min=0, max=20, help="Documents that take the engine down.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Workers.")] = 3,
    only: Annotated[str, typer.Option(help="Only faults whose name holds this, as `worker` or `SIGKILL`.")] = "",
    seed: Annotated[int | None, typer.Option(help="Of everything random. Default: a new one, printed.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for all figures and faults.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Folder for the logs of all processes. Default: not kept.")] = None,
) -> None:
    """Label documents with stub engines while faults strike every few seconds, and account for each document.

    Prints the tables of ops/RELIABILITY.md. Exit codes: 0 nothing was lost, doubled or out of balance and everything
    ended; 1 something was; 130 interrupted by Ctrl-C, with the account so far.
    """
    # This process, like those that it starts, knows only what the soak sets.
    for name in [name for name in os.environ if name.upper().startswith(ENV_PREFIX)]:
        del os.environ[name]
    faults = [fault for fault in FAULTS if only.lower() in fault.kind.lower()]
    if not faults:
        raise typer.BadParameter(
            f"no fault is named so: {'; '.join(fault.kind for fault in FAULTS)}", param_hint="--only"
        )
    plan = Plan(
        minutes=minutes,
        documents=documents or int(minutes * DOCUMENTS_A_MINUTE),
        poison=poison,
        workers=workers,
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        faults=faults,
    )
    interrupted = threading.Event()
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda *_: interrupted.set())
    try:
        with Display() as display:
            report = Soak(plan, logs, display, interrupted).run()
    except (GleanerError, psycopg.Error, TimeoutError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    typer.echo(f"\nBrief settings: {report.brief_settings()}\n\n{report.markdown()}\n")
    for words in report.faults_found:
        typer.echo(f"WRONG: {words}")
    typer.echo(
        f"seed {plan.seed}: "
        + ("FAILED" if report.faults_found else "interrupted" if report.interrupted else "nothing lost")
    )
    sys.exit(report.exit_code)


if __name__ == "__main__":
    app(prog_name="python -m ops.soak")
