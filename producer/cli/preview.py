"""``producer preview``: the prompts of a few documents, and their labels if so asked."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from producer.cli.bars import progress_bar
from producer.cli.corpus import (
    Delimiter,
    Encoding,
    Format,
    Header,
    IdField,
    OpenCorpus,
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
from producer.cli.options import settings_with
from producer.cli.output import JsonFlag, counted, note, print_json, say, say_text
from producer.preview import Looked, Rendered, look, render
from producer.readers import ReadOptions
from producer.tokens import TEMPLATE_TOKENS, context_tokens, room_warning, token_counter
from producer.trial import TRIAL_TIMEOUT_S, try_labels
from schemas.errors import UsageError
from schemas.label_spec import LabelSpec, load_label_spec

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer preview papers.jsonl --schema papers -n 3")
def preview(
    corpus: Sources,
    schema: Annotated[str, typer.Option(help="Label schema, as `producer enqueue` takes it.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="Documents to show.")] = 5,
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
    model: Annotated[str | None, typer.Option(help="Model that labels, as for `producer enqueue`.")] = None,
    prompt: Annotated[str | None, typer.Option(help="System prompt, instead of the label schema's.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="File with the system prompt.")] = None,
    template: Annotated[str | None, typer.Option(help="The user's turn, as for `producer enqueue`.")] = None,
    run: Annotated[
        bool,
        typer.Option("--run", help="Label them too: with a running worker, else with one that is started for it."),
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for labels.")] = TRIAL_TIMEOUT_S,
    as_json: JsonFlag = False,
) -> None:
    """Show what the model will be asked: schema, prompts and their tokens. Without --run nothing is written.

    With --run the documents become a small corpus and job of their own, named preview.
    """
    settings = settings_with(model=model)
    chosen = selection(where, None, None, 0)
    with redirect_stdout(sys.stderr):
        spec, notes = load_label_spec(
            schema, prompt=read_prompt(prompt, prompt_file), template=None if template is None else unescaped(template)
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
    found = look(opened.reader, opened.mapping, settings.document_max_chars, chosen, looked)
    documents = list(islice(found, count))
    if not documents:
        raise UsageError(f"{opened.reader.uri} holds no document to show{looked.why}")
    counter = token_counter(settings)
    system_tokens = counter.count([spec.system_prompt])[0]
    rendered = render(spec, documents, counter)
    labels = try_labels(settings, spec, documents, timeout, note) if run else None
    context, shared = context_tokens(settings), system_tokens + TEMPLATE_TOKENS
    room = None if context is None else context - spec.reserved_output_tokens - shared
    misfits = [one.document_id for one in rendered if room is not None and one.tokens > room]
    warning = room_warning(context, spec, shared, len(misfits) / len(rendered))
    made = _Preview(
        opened, spec, notes, system_tokens, counter.basis, rendered, looked, labels, context, misfits, warning
    )
    if as_json:
        print_json(made.as_json())
    else:
        made.show()


@dataclass(frozen=True)
class _Preview:
    """What is shown of a corpus under a label schema."""

    opened: OpenCorpus
    spec: LabelSpec
    notes: tuple[str, ...]
    system_tokens: int
    basis: str  #: what counted the tokens
    rendered: list[Rendered]
    looked: Looked
    labels: dict[str, dict[str, Any]] | None  #: rows by document id, where the model was run
    context: int | None  #: tokens of prompt and output together
    misfits: list[str]  #: ids of documents that don't fit it
    warning: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            "corpus": self.opened.name,
            "notes": list(self.opened.notes),
            "schema": self.spec.json_schema,
            "schema_notes": list(self.notes),
            "system_prompt": self.spec.system_prompt,
            "system_tokens": self.system_tokens,
            "output_tokens_at_most": self.spec.reserved_output_tokens,
            "context_tokens": self.context,
            "tokens_by": self.basis,
            "warnings": [self.warning] if self.warning else [],
            "rejected": self.looked.rejected,
            "documents": [
                {
                    "document_id": one.document_id,
                    "turn": one.turn,
                    "tokens": one.tokens,
                    "over_long": one.document_id in self.misfits,
                    "flags": one.flags,
                    "fault": one.fault,
                    **({} if self.labels is None else {"row": self.labels.get(one.document_id)}),
                }
                for one in self.rendered
            ],
        }

    def show(self) -> None:
        say(f"Corpus {self.opened.name}")
        for line in self.opened.notes:
            say(f"  {line}")
        if self.looked.rejected:
            say(f"  {self.looked.rejected:,} of the first {counted(self.looked.records, 'record')} rejected")
        say(f"Label schema {self.spec.name}: {', '.join(self.spec.json_schema['properties'])}")
        for line in self.notes:
            say(f"  {line}")
        say(f"System prompt, {counted(self.system_tokens, 'token')} ({self.basis}; the chat template adds a few):")
        say_text(self.spec.system_prompt)
        for one in self.rendered:
            flags = "".join(f", {flag}" for flag in one.flags)
            flags += ", does not fit: over_long" if one.document_id in self.misfits else ""
            say()
            size = f"{counted(one.text_chars, 'character')}, {counted(one.tokens, 'token')}"
            say(f"Document {one.document_id}: {size}{flags}")
            say_text(one.turn) if one.fault is None else say(f"  can't be prompted: {one.fault}")
            if self.labels is not None:
                row = self.labels.get(one.document_id)
                say("-> no row" if row is None else f"-> {_row(row)}")
        if self.warning:
            say()
            say(f"Warning: {self.warning}")


def _row(row: dict[str, Any]) -> str:
    from schemas.jsontext import dump_json  # noqa: PLC0415

    counts = [f"{row[name]:,}" for name in ("prompt_tokens", "output_tokens") if row[name] is not None]
    tokens = f" ({' + '.join(counts)} tokens)" if counts else ""
    said = dump_json(row["label"]) if row["outcome"] == "ok" else f"{row['reason_code']}: {row['reason']}"
    return f"{row['outcome']}: {said}{tokens}"
