"""`worker check`."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from schemas.errors import GleanerError, UsageError
from schemas.label_spec import template_fields
from schemas.lint import structured_path
from schemas.outcomes import CanaryFailed, EngineLost, Outcome
from schemas.printable import printable
from schemas.settings import Settings
from worker.canary import prove_grammar
from worker.cli.options import ProfileOption, SchemaOption, label_spec, settings_with
from worker.engine import create_engine
from worker.engine.base import DECODER, Engine
from worker.identity import set_compile_cache
from worker.measure import Measure
from worker.memory import GIB, memory_is_readable, resident_bytes
from worker.specs import Prepared, prepared

#: Documents of the timed batch: enough to see the engine batch, a second on a GPU and half a minute on two CPU cores.
DOCUMENTS = 16
#: Seconds for the timed batch; what has begun by then may end, see :mod:`worker.measure`.
BATCH_S = 20.0
#: One document of the batch, 90 tokens or so: the length of a short abstract.
TEXT = (
    "Study {n}. We measure how the metabolic rate of {n} species of mammals changes with body mass, from shrews to "
    "elephants. Over six orders of magnitude the rate follows a power law of mass with an exponent close to three "
    "quarters. The residuals show no trend with climate, but small species at high latitudes lie above the line. "
    "We discuss what this says about the branching of supply networks."
)
#: Name of the compile cache that checks and benchmarks use: never that of a worker which may be running.
CACHE_NAME = "check"


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@contextmanager
def started(settings: Settings) -> Iterator[Engine]:
    """An engine that serves, for a command that needs no queue."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    set_compile_cache(CACHE_NAME)
    engine = create_engine(settings)
    try:
        with Console(stderr=True).status("Starting the engine; a first start compiles and takes minutes on a GPU"):
            engine.start()
        yield engine
    finally:
        engine.close()


@app.command(epilog="Example: worker check --schema papers --json")
def check(
    schema: SchemaOption = "papers",
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
) -> None:
    """Start the engine, try it on a label schema, and say what a job may expect of this node.

    Needs neither Postgres nor the broker; GLEANER_MODEL_PATH names the model. In the folder of a local stack
    (`make up`) its settings are taken. Exit codes: 0 healthy, 1 not, 2 wrong use.
    """
    spec = label_spec(schema)
    settings = settings_with(profile)
    found: dict[str, Any] = {"healthy": False, "engine": settings.engine, "model": settings.model, "schema": spec.name}
    began = time.monotonic()
    try:
        with started(settings) as engine:
            found |= _description(engine)
            if engine.info.structured_backend.startswith(DECODER):
                found["structured_path"] = structured_path(spec.grammar.schema)
            found["startup_s"] = round(time.monotonic() - began, 1)
            found |= _tried(engine, prepared(spec, settings, engine))
    except UsageError:
        raise
    except (GleanerError, CanaryFailed, EngineLost) as error:
        found["error"] = str(error)
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)
    raise typer.Exit(0 if found["healthy"] else 1)


def _description(engine: Engine) -> dict[str, Any]:
    info = engine.info
    return {
        "engine": info.engine,
        "version": info.version,
        "model": info.model,
        "model_path": info.model_path,
        "revision": info.revision,
        "context_tokens": info.max_model_len,
        "sequences_a_step": info.max_num_seqs,
        "structured_backend": info.structured_backend,
    }


def _tried(engine: Engine, labels: Prepared) -> dict[str, Any]:
    def look() -> None:
        if engine.lost:
            raise EngineLost("the engine is gone")

    prove_grammar(engine, labels[0], look)
    meta = dict.fromkeys(template_fields(labels[0].spec.template), "unknown")
    batch = [{"ordinal": n, "external_id": str(n), "text": TEXT.format(n=n), "meta": meta} for n in range(DOCUMENTS)]
    figures = Measure(engine, labels).run(batch, in_flight=DOCUMENTS, seconds=BATCH_S)
    found = {
        "canary": "kept to the label schema",
        **{name: value for name, value in figures.as_json().items() if name != "in_flight"},
        "host_memory_gib": round(resident_bytes() / GIB, 2) if memory_is_readable() else None,
    }
    answered = sum(figures.outcomes[outcome] for outcome in (Outcome.OK, Outcome.TRUNCATED, Outcome.INVALID))
    if answered < DOCUMENTS:
        return {**found, "error": f"only {answered} of {DOCUMENTS} documents got an answer"}
    return {**found, "healthy": True}


def _show(found: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    for name, value in found.items():
        if value is None or name in ("healthy", "error"):
            continue
        table.add_row(name.replace("_", " "), printable(_counts(value) if isinstance(value, dict) else str(value)))
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print("healthy" if found["healthy"] else printable(f"not healthy: {found['error']}"), soft_wrap=True)


def _counts(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
