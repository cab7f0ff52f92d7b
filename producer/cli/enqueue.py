"""``producer enqueue``: a corpus and a label schema to a job that workers can start on."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from psycopg.types.json import Jsonb

from producer.cli.bars import progress_bar
from producer.cli.corpus import (
    Delimiter,
    Encoding,
    Format,
    Header,
    IdField,
    Limit,
    OpenCorpus,
    Query,
    Sample,
    Seed,
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
from producer.cli.options import ChunkSizeOption, OverLongOption, one_of, priority_number, settings_with
from producer.cli.output import JsonFlag, counted, print_json, say
from producer.cli.tables import show_table
from producer.difference import Difference
from producer.duplicates import OnDuplicate
from producer.estimate import forecast_corpus
from producer.jobs import FrozenSpec, Job, create_job, freeze_label_spec, job_model
from producer.loader import Corpus, LoadRules, load_corpus
from producer.publish import publish_waiting
from producer.readers import ReadOptions
from producer.serving import unserved
from producer.standing import ENDED, state_note
from schemas.closing import close_job
from schemas.database import Connection, connect, queries, require_migrated
from schemas.errors import UsageError
from schemas.label_spec import MADE_PROMPT, LabelSpec, load_label_spec
from schemas.lint import structured_path
from schemas.outcomes import OverLong
from schemas.queue import create_app, require_broker
from schemas.views import column_names

#: Rejects shown in the summary; `producer status JOB --rejects` shows all.
SHOWN_REJECTS = 3
_PROMPT_IS_MADE = "prompt: made from the schema's descriptions (--prompt or --prompt-file for your own)"

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer enqueue papers.jsonl --schema papers --text-field abstract")
def enqueue(
    corpus: Sources,
    schema: Annotated[
        str,
        typer.Option(help="Label schema: a built-in name, module:Class, a .py file with a class, or a .json file."),
    ],
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
    sample: Sample = None,
    seed: Seed = 0,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep documents with the same value of a field together: the engine reads what their prompts have in "
            "common once."
        ),
    ] = None,
    only_new: Annotated[
        bool,
        typer.Option("--only-new", help="Only documents that the corpus of this name did not have, or that changed."),
    ] = False,
    on_duplicate: Annotated[
        OnDuplicate,
        typer.Option(
            parser=one_of(OnDuplicate), metavar="WHICH", help="Of records with one id keep the first, last or all."
        ),
    ] = OnDuplicate.FIRST,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse the corpus if any record is rejected.")] = False,
    max_rejects: Annotated[
        str | None, typer.Option(metavar="N|P%", help="Refuse the corpus if more records are rejected.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that labels. Default: GLEANER_MODEL, else the only one served so far.")
    ] = None,
    chunk_size: ChunkSizeOption = None,
    prompt: Annotated[str | None, typer.Option(help="System prompt, instead of the label schema's.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the system prompt.")] = None,
    template: Annotated[
        str | None, typer.Option(help="The user's turn: {text} is the document, {id} its id, others its metadata.")
    ] = None,
    over_long: OverLongOption = OverLong.REJECT,
    priority: Annotated[
        int | None,
        typer.Option(
            parser=priority_number,
            metavar="<int>",
            help="Higher goes first among the jobs of a model. Default: 0; a job that exists keeps its own.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the corpus. Default: the file's name.")] = None,
    schema_name: Annotated[str | None, typer.Option(help="Name of the label schema, instead of its own.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Load a corpus, freeze the label spec, and publish the job's chunks to the workers.

    The same call again changes nothing: the corpus is not loaded twice, and what was left of the job is published.
    """
    settings = settings_with(model=model, chunk_size=chunk_size)
    rules = LoadRules(
        on_duplicate,
        *_max_rejects(strict, max_rejects),
        selection=selection(where, limit, sample, seed, group_by, only_new),
    )
    template = None if template is None else unescaped(template)
    with redirect_stdout(sys.stderr):  # whatever a .py file prints is no part of our answer
        spec, notes = load_label_spec(
            schema, prompt=read_prompt(prompt, prompt_file), template=template, name=schema_name, over_long=over_long
        )
    column_names(spec)  # a field that can't be a column is said before anything is written
    with connect(settings, "producer enqueue") as connection, create_app(settings) as broker:
        require_migrated(connection)
        require_broker(broker, settings)
        model = job_model(connection, settings)
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
                name=name,
                group_by=group_by,
                where=rules.selection.where,
            )
            loaded = load_corpus(connection, opened.reader, opened.mapping, opened.name, settings, progress, rules)
            if loaded.nothing_new:
                _nothing_new(loaded, as_json)
                return
            frozen = freeze_label_spec(connection, spec)
            job = create_job(connection, loaded, frozen, model, settings.chunk_size, priority or 0)
            misfit: list[str] = []
            if job.created:
                expected = forecast_corpus(connection, loaded.id, loaded.documents, spec, frozen.id, settings, model)
                misfit = expected.warnings
                queries.set_forecast(connection, job_id=job.id, forecast=Jsonb(expected.as_json()))
            elif priority is not None:
                queries.set_priority(connection, job_id=job.id, priority=priority)
            published = publish_waiting(connection, broker, settings, model, progress)
        # A worker that died between its last chunk and the job's end left this to do.
        close_job(connection, job.id)
        summary = {**_summary(connection, opened, loaded, frozen, job, published), "model": model}
        summary["structured_path"] = structured_path(spec.grammar.schema)
        warnings = [
            *misfit,
            state_note(job.id, summary["state"], summary.pop("state_reason")),
            None if summary["state"] in ENDED else unserved(connection, settings, model),
        ]
        summary["warnings"] = [warning for warning in warnings if warning]
    if as_json:
        print_json(summary)
    else:
        made = prompt is None and prompt_file is None and spec.system_prompt.startswith(MADE_PROMPT)
        _show(summary, spec, (*notes, *([_PROMPT_IS_MADE] if made else [])))


def _max_rejects(strict: bool, most: str | None) -> tuple[int | None, float | None]:
    """Records that may be rejected, as a number or as a share of all."""
    if strict:
        if most is not None:
            raise UsageError("--strict allows no reject, --max-rejects some: give one")
        return 0, None
    if most is None:
        return None, None
    try:
        if most.endswith("%"):
            share = float(most[:-1]) / 100
            if 0 <= share <= 1:
                return None, share
        elif int(most) >= 0:
            return int(most), None
    except ValueError:
        pass
    raise UsageError(f"--max-rejects {most!r}: give a number of records, or a share as in 2%")


def _nothing_new(corpus: Corpus, as_json: bool) -> None:
    """There is no document to label: say so, and what the corpus was compared with."""
    assert corpus.difference is not None
    if as_json:
        print_json({"job_id": None, "corpus_id": corpus.id, "difference": corpus.difference.as_json()})
    else:
        say(f"Nothing new since corpus {corpus.id}, {corpus.name}: {corpus.difference}. No job was made.")


def _summary(
    connection: Connection, opened: OpenCorpus, corpus: Corpus, spec: FrozenSpec, job: Job, published: int
) -> dict[str, Any]:
    chunks = {row["state"]: row["chunks"] for row in queries.chunks_by_state(connection, job_id=job.id)}
    stored = queries.job_by_id(connection, job_id=job.id)
    return {
        "job_id": job.id,
        "created": job.created,
        "state": stored["state"],
        "state_reason": stored["state_reason"],
        "corpus_id": corpus.id,
        "corpus": corpus.name,
        "corpus_loaded": corpus.created,
        "uri": opened.reader.uri,
        "unit": opened.reader.unit,
        "notes": list(opened.notes),
        "documents": corpus.documents,
        "rejected": corpus.rejected,
        "unselected": corpus.unselected,
        "difference": corpus.difference.as_json() if corpus.difference else None,
        "rejects": {row["code"]: row["rejected"] for row in queries.rejects_by_code(connection, corpus_id=corpus.id)},
        "first_rejects": list(queries.list_rejects(connection, corpus_id=corpus.id, after=-1, batch=SHOWN_REJECTS)),
        "label_spec": spec.name,
        "version": spec.version,
        "new_version": spec.created and spec.version > 1,
        "chunks": sum(chunks.values()),
        "chunks_done": chunks.get("done", 0),
        "published": published,
    }


def _show(summary: dict[str, Any], spec: LabelSpec, notes: tuple[str, ...]) -> None:
    loaded = "loaded" if summary["corpus_loaded"] else "was loaded before"
    say(f"Corpus {summary['corpus']} {loaded}: {counted(summary['documents'], 'document')}")
    for line in summary["notes"]:
        say(f"  {line}")
    if summary["unselected"]:
        say(f"  {counted(summary['unselected'], 'record')} not selected")
    if summary["difference"]:
        difference = Difference(**summary["difference"])
        say(f"  to corpus {difference.base}, {difference.base_name}, before it: {difference}")
    if summary["rejected"]:
        _show_rejects(summary)
    fields = counted(len(spec.json_schema["properties"]), "field")
    say(f"Label spec {spec.name}_v{summary['version']}: {fields}, by the {summary['structured_path']}")
    if summary["new_version"]:
        name, version = spec.name, summary["version"]
        say(
            f"  new version of {name}: labels.{name} now shows v{version}, v{version - 1} stays in "
            f"labels.{name}_v{version - 1} (--schema-name for another name)"
        )
    for line in notes:
        say(f"  {line}")
    job = f"Job {summary['job_id']}"
    if summary["state"] in ENDED:
        say(f"{job} is {summary['state']}: nothing left to publish")
    else:
        begun = "created" if summary["created"] else "continued"
        enough = "" if summary["published"] else " (the queue holds a message for each chunk that waits)"
        say(f"{job} {begun}: {counted(summary['chunks'], 'chunk')}, {summary['published']:,} published{enough}")
    for warning in summary["warnings"]:
        say(f"Warning: {warning}")
    say(f"Next: producer watch {summary['job_id']}; producer status {summary['job_id']}")


def _show_rejects(summary: dict[str, Any]) -> None:
    records = summary["documents"] + summary["rejected"] + summary["unselected"]
    say(f"  {counted(summary['rejected'], 'record')} rejected, {summary['rejected'] / records:.2%}:")
    show_table(("   ", "code", "records"), [("", code, f"{count:,}") for code, count in summary["rejects"].items()])
    for reject in summary["first_rejects"]:
        source = f" of {reject['source']}" if reject["source"] else ""
        say(f"    {summary['unit']} {reject['line']}{source}: {reject['code']}: {reject['reason']}")
    if summary["rejected"] > len(summary["first_rejects"]):
        say(f"    all of them: producer status {summary['job_id']} --rejects")
