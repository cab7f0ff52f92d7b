"""``producer estimate``: what a job would take, before anything is written."""

import random
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from sys import stderr
from typing import Annotated, Any

import typer

from producer.cli.bars import progress_bar
from producer.cli.corpus import (
    Delimiter,
    Encoding,
    Format,
    Header,
    IdField,
    Limit,
    Query,
    Sheet,
    Sources,
    Table,
    Text,
    TextFields,
    Where,
    open_corpus,
    read_prompt,
    selection,
    unescaped,
)
from producer.cli.options import OverLongOption, settings_with
from producer.cli.output import JsonFlag, counted, duration, note, print_json, say
from producer.estimate import MEASURED_RATES, SAMPLE, Forecast, History, forecast, history_of
from producer.jobs import job_model
from producer.preview import Looked, look
from producer.readers import ReadOptions
from schemas.database import connect, queries, require_migrated
from schemas.errors import DatabaseNotMigrated, DatabaseUnavailable, UsageError
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.outcomes import OverLong
from schemas.settings import Settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer estimate papers.jsonl --schema papers --profile h200 --workers 4")
def estimate(
    corpus: Sources,
    schema: Annotated[str, typer.Option(help="Label schema, as `producer enqueue` takes it.")],
    id_field: IdField = None,
    text_field: TextFields = None,
    text: Text = None,
    file_format: Format = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    header: Header = None,
    db_table: Table = None,
    query: Query = None,
    sheet: Sheet = None,
    where: Where = None,
    limit: Limit = None,
    model: Annotated[str | None, typer.Option(help="Model that labels, as for `producer enqueue`.")] = None,
    prompt: Annotated[str | None, typer.Option(help="System prompt, instead of the label schema's.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the system prompt.")] = None,
    template: Annotated[str | None, typer.Option(help="The user's turn, as for `producer enqueue`.")] = None,
    over_long: OverLongOption = OverLong.REJECT,
    workers: Annotated[int, typer.Option(min=1, help="GPUs that will work on it, one a worker.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Documents a second of one GPU. Default: as measured.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help=f"Kind of node, instead of what the last job took. A rate was measured on {', '.join(MEASURED_RATES)}."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a job would take: tokens, over-long documents, GPU hours, wall time and money. Writes nothing.

    The whole corpus is read to count its documents; some are tokenized. Money: set GLEANER_GPU_HOUR_PRICE.
    """
    settings = settings_with(model=model, engine_profile=profile)
    chosen = selection(where, limit, None, 0)
    with redirect_stdout(stderr):
        spec, _ = load_label_spec(
            schema,
            prompt=read_prompt(prompt, prompt_file),
            template=None if template is None else unescaped(template),
            over_long=over_long,
        )
    with progress_bar(as_json) as progress:
        opened = open_corpus(
            corpus,
            settings,
            ReadOptions(file_format, encoding, delimiter, header, db_table, query, sheet),
            progress,
            id_field=id_field,
            text_fields=text_field,
            text=text,
            template=spec.template,
            where=chosen.where,
        )
        looked = Looked()
        size = opened.reader.size
        documents = look(
            opened.reader,
            opened.mapping,
            settings.document_max_chars,
            chosen,
            looked,
            lambda done: progress("reading", done, size),
        )
        sample = _drawn(documents)
    if not sample:
        raise UsageError(f"{opened.reader.uri} holds no document to estimate{looked.why}")
    history, context = _history(settings, spec)
    made = forecast(
        sample,
        looked.documents,
        spec,
        settings,
        history=history,
        context=context,
        workers=workers,
        rate=rate,
        profile=profile,
    )
    if as_json:
        print_json({**made.as_json(), "rejected": looked.rejected, "notes": list(opened.notes)})
        return
    say(f"Corpus {opened.name}: {counted(looked.documents, 'document')}, {counted(looked.rejected, 'record')} rejected")
    for line in (*opened.notes, *forecast_lines(made)):
        say(f"  {line}")
    for warning in made.warnings:
        say(f"Warning: {warning}")


def forecast_lines(made: Forecast) -> list[str]:
    """A forecast in words."""
    lines = [
        f"prompt tokens  {made.prompt_tokens:,} (± {made.prompt_spread:.0%}), {made.cached_share:.0%} of them shared; "
        f"{made.basis['prompt tokens']}",
        f"output tokens  {made.output_tokens:,} (± {made.output_spread:.0%}); {made.basis['output tokens']}",
    ]
    if made.over_long_share is not None:
        lines.append(f"over-long      {made.over_long_share:.1%} of the documents")
    if made.seconds is None:
        lines.append(f"time           {made.basis['rate']}")
        return lines
    many = f" with {counted(made.workers, 'GPU')}" if made.workers > 1 else ""
    lines.append(
        f"time           {duration(made.seconds)}{many}, {made.gpu_hours:,.2f} GPU hours; {made.basis['rate']}"
    )
    price = "set GLEANER_GPU_HOUR_PRICE for it" if made.cost is None else f"{made.cost:,.2f} (GLEANER_GPU_HOUR_PRICE)"
    lines.append(f"cost           {price}")
    return lines


def _drawn(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of the documents, each as likely as another, in one pass."""
    chance = random.Random(0)
    drawn: list[dict[str, Any]] = []
    for number, document in enumerate(documents):
        if number < SAMPLE:
            drawn.append(document)
        elif (place := chance.randint(0, number)) < SAMPLE:
            drawn[place] = document
    return drawn


def _history(settings: Settings, spec: LabelSpec) -> tuple[History | None, int | None]:
    """What was measured before, if there is a database to ask."""
    try:
        with connect(settings, "producer estimate") as connection:
            require_migrated(connection)
            model = job_model(connection, settings)
            found = queries.label_spec_by_digest(connection, digest=spec.digest)
            history = history_of(connection, model, found["id"] if found else None)
            return history, queries.last_context(connection, model=model)
    except (DatabaseUnavailable, DatabaseNotMigrated) as error:
        note(f"note: nothing is known of jobs before: {error}")
        return None, None
