"""``producer enqueue``: a corpus and a label schema to a job that workers can start on."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from producer.cli.output import JsonFlag, counted, print_json, progress_bar, say, whole_number
from producer.fields import check_fields
from producer.jobs import FrozenSpec, Job, create_job, freeze_label_spec, job_model
from producer.loader import Corpus, load_corpus
from producer.publish import publish_open_chunks
from producer.readers import Reader, open_reader
from producer.records import FieldMapping
from producer.serving import unserved
from producer.standing import ENDED
from schemas.database import Connection, connect, queries, require_migrated
from schemas.errors import UsageError
from schemas.label_spec import MADE_PROMPT, LabelSpec, load_label_spec, template_fields
from schemas.lint import structured_path
from schemas.outcomes import OverLong
from schemas.queue import create_app, require_broker
from schemas.settings import Settings, load_settings, problem
from schemas.views import column_names

#: Rejects shown in the summary; `producer status JOB --rejects` shows all.
SHOWN_REJECTS = 3
#: Endings that say nothing in a corpus's name.
_ENDINGS = (".gz", ".jsonl", ".ndjson", ".json")
_PROMPT_IS_MADE = "prompt: made from the schema's descriptions (--prompt or --prompt-file for your own)"

app = typer.Typer(add_completion=False)


def _policy(value: str) -> OverLong:
    try:
        return OverLong(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is none of {', '.join(OverLong)}") from None


@app.command(epilog="Example: producer enqueue papers.jsonl --schema papers --text-field abstract")
def enqueue(
    corpus: Annotated[str, typer.Argument(help="JSONL file, plain or gzip: one JSON object a line.")],
    schema: Annotated[
        str,
        typer.Option(help="Label schema: a built-in name, module:Class, a .py file with a class, or a .json file."),
    ],
    id_field: Annotated[str, typer.Option(help="Field that holds a document's id: text or a whole number.")] = "id",
    text_field: Annotated[str, typer.Option(help="Field that holds a document's text.")] = "text",
    model: Annotated[
        str | None, typer.Option(help="Model that labels. Default: GLEANER_MODEL, else the only one served so far.")
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="<int>", help="Documents a chunk. Default: GLEANER_CHUNK_SIZE (256)."
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="System prompt, instead of the label schema's.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the system prompt.")] = None,
    template: Annotated[
        str | None, typer.Option(help="The user's turn: {text} is the document, {id} its id, others its metadata.")
    ] = None,
    over_long: Annotated[
        OverLong,
        typer.Option(
            parser=_policy,
            metavar="POLICY",
            help=f"What becomes of a document that does not fit the model's context: {', '.join(OverLong)}.",
        ),
    ] = OverLong.REJECT,
    name: Annotated[str | None, typer.Option(help="Name of the corpus. Default: the file's name.")] = None,
    schema_name: Annotated[str | None, typer.Option(help="Name of the label schema, instead of its own.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Load a corpus, freeze the label spec, and publish the job's chunks to the workers.

    The same call again changes nothing: the corpus is not loaded twice, and what was left of the job is published.
    """
    settings = _settings(model, chunk_size)
    reader = open_reader(corpus, settings)
    with redirect_stdout(sys.stderr):  # whatever a .py file prints is no part of our answer
        spec, notes = load_label_spec(
            schema, prompt=_prompt(prompt, prompt_file), template=template, name=schema_name, over_long=over_long
        )
    column_names(spec)  # a field that can't be a column is said before anything is written
    mapping = FieldMapping(id_field, text_field)
    with connect(settings, "producer enqueue") as connection, create_app(settings) as broker:
        require_migrated(connection)
        require_broker(broker, settings)
        model = job_model(connection, settings)
        check_fields(reader, mapping, template_fields(spec.template))
        with progress_bar(not as_json) as progress:
            loaded = load_corpus(connection, reader, mapping, name or _corpus_name(corpus), settings, progress)
            frozen = freeze_label_spec(connection, spec)
            job = create_job(connection, loaded, frozen, model, settings.chunk_size)
            published = publish_open_chunks(connection, broker, settings, job.id, model, progress)
        # A worker that died between its last chunk and the job's end left this to do.
        queries.finish_job(connection, job_id=job.id)
        summary = {**_summary(connection, reader, loaded, frozen, job, published), "model": model}
        summary["structured_path"] = structured_path(spec.grammar.schema)
        warning = None if summary["state"] in ENDED else unserved(connection, broker, model)
        summary["warnings"] = [warning] if warning else []
    if as_json:
        print_json(summary)
    else:
        made = prompt is None and prompt_file is None and spec.system_prompt.startswith(MADE_PROMPT)
        _show(summary, spec, (*notes, *([_PROMPT_IS_MADE] if made else [])))


def _settings(model: str | None, chunk_size: int | None) -> Settings:
    given: dict[str, Any] = {
        key: value for key, value in (("model", model), ("chunk_size", chunk_size)) if value is not None
    }
    settings = load_settings()
    if not given:
        return settings
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{str(first['loc'][0]).replace('_', '-')}: {problem(first)}") from None


def _prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    if prompt is not None and prompt_file is not None:
        raise UsageError("--prompt and --prompt-file say the same thing: give one")
    if prompt_file is not None:
        try:
            prompt = prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UsageError(f"--prompt-file {prompt_file}: {cause}") from None
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty: give text, or leave it out for the label schema's own")
    return prompt


def _corpus_name(path: str) -> str:
    name = Path(path).name
    for ending in _ENDINGS:
        name = name.removesuffix(ending) or name
    return name


def _summary(
    connection: Connection, reader: Reader, corpus: Corpus, spec: FrozenSpec, job: Job, published: int
) -> dict[str, Any]:
    chunks = {row["state"]: row["chunks"] for row in queries.chunks_by_state(connection, job_id=job.id)}
    return {
        "job_id": job.id,
        "created": job.created,
        "state": queries.job_by_id(connection, job_id=job.id)["state"],
        "corpus_id": corpus.id,
        "corpus": corpus.name,
        "corpus_loaded": corpus.created,
        "uri": reader.uri,
        "documents": corpus.documents,
        "rejected": corpus.rejected,
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
    say(
        f"Corpus {summary['corpus']} {loaded}: {counted(summary['documents'], 'document')}",
    )
    if summary["rejected"]:
        codes = ", ".join(f"{count:,} {code}" for code, count in summary["rejects"].items())
        say(f"  {counted(summary['rejected'], 'record')} rejected: {codes}")
        for reject in summary["first_rejects"]:
            say(f"    line {reject['line']}: {reject['code']}: {reject['reason']}")
        if summary["rejected"] > len(summary["first_rejects"]):
            say(f"    all of them: producer status {summary['job_id']} --rejects")
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
        say(f"{job} {begun}: {counted(summary['chunks'], 'chunk')}, {summary['published']:,} published")
    for warning in summary["warnings"]:
        say(f"Warning: {warning}")
    say(f"Next: producer watch {summary['job_id']}; producer status {summary['job_id']}")
