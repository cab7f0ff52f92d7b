"""`worker bench`."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from schemas.errors import EngineUnavailable
from schemas.outcomes import EngineLost
from worker.bench import MOST_IN_FLIGHT, Bench, Point
from worker.cli.check import started
from worker.cli.options import ProfileOption, SchemaOption, label_spec, settings_with
from worker.sample import read_sample
from worker.specs import prepared

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: worker bench sample.jsonl --schema papers --json bench.json")
def bench(
    corpus: Annotated[Path, typer.Argument(help="JSONL file, plain or gzip: one JSON object a line.")],
    schema: SchemaOption,
    documents: Annotated[
        int, typer.Option(min=1, help="Documents of the corpus to measure with; used again if a point needs more.")
    ] = 512,
    text_field: Annotated[str, typer.Option(help="Field that holds a document's text.")] = "text",
    id_field: Annotated[str, typer.Option(help="Field that holds a document's id.")] = "id",
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds a point; what is in flight then may end, within five times as many.")
    ] = 10.0,
    most: Annotated[
        int, typer.Option("--in-flight", min=1, max=4096, help="Documents in flight at the last point.")
    ] = MOST_IN_FLIGHT,
    profile: ProfileOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file as JSON.")] = None,
) -> None:
    """Measure this node's throughput: 1 document in flight, 2, 4 and so on, with grammar and without, prefix cache
    cold and warm.

    Needs neither Postgres nor the broker. While the prefix cache is cold it holds the system prompt, as in a job; the
    warm point labels the same documents again. `gain` is against 1 in flight, `cached` the share of the prompts' tokens
    that the prefix cache held.
    """
    spec = label_spec(schema)
    settings = settings_with(profile)
    sample = read_sample(corpus, documents, text_field, id_field)
    console = Console(stderr=True)
    try:
        with ExitStack() as stack:
            engine = stack.enter_context(started(settings))
            measured = Bench(engine, prepared(spec, settings, engine), sample, seconds=seconds, most_in_flight=most)
            points = _run(measured, console)
            results = {"engine": engine.info.as_json(), "schema": spec.name, "sample_documents": len(sample)}
    except EngineLost as error:
        raise EngineUnavailable(f"the engine did not last: {error}") from None
    if json_file is not None:
        json_file.write_text(json.dumps({**results, "points": [point.as_json() for point in points]}, indent=1) + "\n")
    _show(points, Console(highlight=False))


def _run(measured: Bench, console: Console) -> list[Point]:
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    points = []
    with progress:
        task = progress.add_task("points", total=measured.points)
        for point in measured.run():
            points.append(point)
            progress.advance(task)
    return points


def _show(points: list[Point], console: Console) -> None:
    table = Table("in flight", "grammar", "cache", "docs/s", "tokens/s", "gain", "cached", "ended as")
    single = {point.grammar: point.figures.output_tokens_per_s for point in points if point.figures.in_flight == 1}
    for point in points:
        figures = point.figures
        base = single.get(point.grammar)
        table.add_row(
            str(figures.in_flight),
            "on" if point.grammar else "off",
            point.prefix_cache,
            f"{figures.documents_per_s:.1f}",
            f"{figures.output_tokens_per_s:.0f}",
            f"{figures.output_tokens_per_s / base:.1f}" if base else "",
            f"{figures.cached_share:.0%}",
            ", ".join(f"{count} {outcome}" for outcome, count in figures.outcomes.items()) or "none in time",
        )
    console.print(table)
