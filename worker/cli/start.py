"""`worker start`."""

import logging
from typing import Annotated, Any

import typer

from schemas.database import connect, require_migrated
from schemas.errors import UsageError
from schemas.printable import log_printable
from schemas.queue import create_app, queue_name, require_broker
from schemas.settings import Settings
from worker.cli.options import ProfileOption, settings_with
from worker.engine.profiles import sequences_a_step
from worker.family import kill_descendants
from worker.identity import default_name, node_name, require_only_one, set_compile_cache

#: The one pool whose threads can share an engine. prefork would fork it, solo blocks the consumer while a chunk runs,
#: and green threads patch the sockets that the engine's own loop uses.
POOL = "threads"

#: Steps' worth of documents in flight: exactly one starves the scheduler between a finish and the next submit, two must
#: always wait, and one more is lost while a chunk ends and the next is claimed.
FLIGHT_STEPS = 3
#: Fewer would leave one chunk alone with the engine when others end together.
MIN_SLOTS = 4
#: More are threads that wait for one another's share of the processor.
MAX_SLOTS = 64


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(
    epilog="Example: GLEANER_MODEL=qwen3-8b GLEANER_MODEL_PATH=/models/qwen3-8b worker start --profile h200 --name gpu0"
)
def start(
    name: Annotated[
        str | None,
        typer.Option(help="This worker's name, one a GPU; its host is added. Default: worker and the GPU's number."),
    ] = None,
    profile: ProfileOption = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SLOTS, help="Chunks in flight at once. Default: enough to keep the engine fed."),
    ] = None,
    pool: Annotated[str, typer.Option(help=f"Celery's pool. Only {POOL}: others can't share an engine.")] = POOL,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Start the engine, then label chunks of this model's queue until SIGTERM (or Ctrl-C).

    At SIGTERM finished rows are written and unfinished chunks go back to the queue, within GLEANER_SHUTDOWN_S. A
    second one, or SIGQUIT, ends the worker and its engine at once; rows not written by then are made again.

    http://127.0.0.1:9790/health tells how it is (200, or 503 when it is stuck), /ready whether it takes chunks. The log
    says the port where 9790 is taken; GLEANER_HEALTH_HOST and GLEANER_HEALTH_PORT set the address.

    Exit codes: 0 stopped, 1 a service, the engine or the port could not be had, or stopping took too long, 2 wrong use,
    143 or 130 a second SIGTERM or Ctrl-C. Start it again at 70, when the engine died or hung (GLEANER_STALL_S), and at
    75, when the memory limit was met or the broker's messages no longer came.
    """
    if pool != POOL:
        raise UsageError(f"the pool {pool!r} can't share one resident engine between chunks: use --pool {POOL}")
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise UsageError(f"unknown log level {log_level!r}: use DEBUG, INFO, WARNING or ERROR")
    settings = settings_with(profile)
    slots = slots or settings.worker_slots or slots_for(settings)
    name = name or default_name()
    node = node_name(name)
    _require_services(settings, node)
    set_compile_cache(name)
    raise typer.Exit(_work(settings, node, slots, log_level.upper()))


def _log_text_alone(logger: logging.Logger, **_: Any) -> None:
    for handler in logger.handlers:
        handler.addFilter(log_printable)


def slots_for(settings: Settings) -> int:
    """Chunks in flight that keep the engine's queue from draining while a chunk ends and the next is claimed."""
    documents = FLIGHT_STEPS * sequences_a_step(settings)
    return min(MAX_SLOTS, max(MIN_SLOTS, -(-documents // settings.chunk_size)))


def _require_services(settings: Settings, node: str) -> None:
    with connect(settings, "worker start") as connection:
        require_migrated(connection)
    with create_app(settings) as celery:
        require_broker(celery, settings)
        require_only_one(celery, node)


def _work(settings: Settings, node: str, slots: int, log_level: str) -> int:
    from celery.signals import after_setup_logger  # noqa: PLC0415

    from worker.app import Runtime, create_worker_app  # noqa: PLC0415 (celery's worker takes a second to import)

    after_setup_logger.connect(_log_text_alone)
    runtime = Runtime(settings, node, slots)
    celery = create_worker_app(settings, runtime)
    worker = celery.Worker(
        hostname=node,
        pool_cls=POOL,
        concurrency=slots,
        queues=[queue_name(settings.model)],
        loglevel=log_level,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    worker.start()
    # What an engine left that did not close in order, or was still loading.
    kill_descendants()
    return int(worker.exitcode or 0)
