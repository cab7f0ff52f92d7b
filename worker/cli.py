"""The command `worker`."""

import logging
import os
import socket
import sys
from typing import Annotated

import typer

from migrations import head_revision
from schemas.database import connect, require_migrated
from schemas.errors import GleanerError, UsageError
from schemas.queue import create_app, queue_name, require_broker
from schemas.settings import Settings, load_settings

app = typer.Typer(
    name="worker",
    help="Labels documents: takes chunks from the queue, runs them through its engine, writes rows to Postgres.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

#: The one pool whose threads can share an engine. prefork would fork it, solo blocks the consumer while a chunk runs,
#: and green threads patch the sockets that the engine's own loop uses.
POOL = "threads"


@app.callback()
def _group() -> None:
    """A group, so that `worker start` stays a command of its own."""


@app.command(epilog="Example: GLEANER_MODEL=qwen3-8b GLEANER_MODEL_PATH=/models/qwen3-8b worker start --name gpu0")
def start(
    name: Annotated[
        str | None,
        typer.Option(help="This worker's name, one a GPU; its host is added. Default: worker and the process id."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=64, help="Chunks in flight at once. Default: GLEANER_WORKER_SLOTS.")
    ] = None,
    pool: Annotated[str, typer.Option(help=f"Celery's pool. Only {POOL}: others can't share an engine.")] = POOL,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Start the engine, then label chunks of this model's queue until SIGTERM (or Ctrl-C).

    At SIGTERM finished rows are written and unfinished chunks go back to the queue. Exit codes: 0 stopped, 1 a service
    or the engine could not be had, 2 wrong use, 70 the engine died.
    """
    if pool != POOL:
        raise UsageError(f"the pool {pool!r} can't share one resident engine between chunks: use --pool {POOL}")
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise UsageError(f"unknown log level {log_level!r}: use DEBUG, INFO, WARNING or ERROR")
    settings = load_settings()
    if slots is not None:
        settings = settings.model_copy(update={"worker_slots": slots})
    _require_services(settings)
    raise typer.Exit(_work(settings, f"{name or f'worker-{os.getpid()}'}@{socket.gethostname()}", log_level.upper()))


def _require_services(settings: Settings) -> None:
    with connect(settings, "worker start") as connection:
        require_migrated(connection, head_revision())
    require_broker(create_app(settings), settings)


def _work(settings: Settings, name: str, log_level: str) -> int:
    from worker.app import Runtime, create_worker_app  # noqa: PLC0415 (celery's worker takes a second to import)

    celery = create_worker_app(settings, Runtime(settings, name))
    worker = celery.Worker(
        hostname=name,
        pool_cls=POOL,
        concurrency=settings.worker_slots,
        queues=[queue_name(settings.model)],
        loglevel=log_level,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def main() -> None:
    """The console script: an error that a user can mend is one line and an exit code."""
    try:
        app()
    except GleanerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
