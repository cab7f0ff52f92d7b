"""What commands that read a corpus take in common, and how they say what they read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from producer.fields import choose_fields
from producer.grouping import grouping_hint
from producer.progress import Progress
from producer.readers import FORMATS, Reader, ReadOptions, open_reader
from producer.readers.file import COMPRESSED_ENDINGS
from producer.records import FieldMapping
from producer.selection import Condition, Selection
from schemas.errors import UsageError
from schemas.label_spec import template_fields
from schemas.settings import Settings

#: Endings that say nothing in a corpus's name.
_ENDINGS = (
    *COMPRESSED_ENDINGS,
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".tab", ".parquet", ".arrow", ".feather"),
    *(".sqlite", ".sqlite3", ".db", ".xlsx", ".xls", ".ods", ".txt", ".md"),
)

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Files, folders, globs, URLs (s3://, gs://, hf://, https://), - for stdin, or a postgresql:// URL. JSON "
        "Lines, JSON, CSV, Parquet, Arrow, SQLite, Excel, text; plain or gzip, bzip2, xz, zstd.",
        show_default=False,
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(help="Field that holds a document's id. Default: guessed; else ids are made from the content."),
]
TextFields = Annotated[
    list[str] | None,
    typer.Option("--text-field", help="Field that holds a document's text; several are joined. Default: guessed."),
]
Text = Annotated[
    str | None, typer.Option("--text", help=r"How the text is made of several fields: '{title}\n\n{abstract}'.")
]
Format = Annotated[
    str | None,
    typer.Option("--format", help=f"Instead of what content and name say: {', '.join(FORMATS)}."),
]
Encoding = Annotated[str | None, typer.Option(help="Encoding of text, CSV or JSON, as in cp1252. Default: detected.")]
Delimiter = Annotated[str | None, typer.Option(help="Between the cells of a CSV file. Default: detected.")]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether the first row names the columns. Default: detected."),
]
Table = Annotated[str | None, typer.Option("--table", help="Table of an SQLite or Postgres database.")]
Query = Annotated[str | None, typer.Option(help="Query of an SQLite or Postgres database, instead of a table.")]
Sheet = Annotated[str | None, typer.Option(help="Sheet of a workbook. Default: the only one with rows.")]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Only records that meet a condition: year>=2015, field=physics. Several: all of them."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many documents.")]
Sample = Annotated[int | None, typer.Option(min=1, help="Only so many documents, drawn by chance.")]
Seed = Annotated[int, typer.Option(help="Of the chance: the same seed draws the same documents.")]


@dataclass(frozen=True, slots=True)
class OpenCorpus:
    """A corpus that can be read. ``notes``: what was detected and guessed, in words."""

    reader: Reader
    mapping: FieldMapping
    name: str
    notes: tuple[str, ...]


def open_corpus(
    sources: list[str],
    settings: Settings,
    options: ReadOptions,
    progress: Progress,
    *,
    id_field: str | None,
    text_fields: list[str] | None,
    text: str | None,
    template: str,
    name: str | None = None,
    group_by: list[str] | None = None,
    where: tuple[Condition, ...] = (),
) -> OpenCorpus:
    """Find a corpus, tell its format, choose its fields.

    :param template: of the prompt; records must have the fields that it names.
    :param group_by: fields that documents are grouped by; if there is none, those are named for which it would pay.
    :param where: conditions that documents must meet; records must have the fields that they compare.
    :raises UsageError: for what can't be read, and fields that are not there or not obvious.
    """
    if text is not None and text_fields:
        raise UsageError("--text and --text-field say the same thing: give one")
    reader = open_reader(sources, settings, options, progress)
    parts = None if text is None else unescaped(text)
    compared = [condition.field for condition in where]
    mapping, guesses = choose_fields(
        reader, id_field, text_fields or (), parts, template_fields(template), group_by or (), compared
    )
    hint = None if group_by else grouping_hint(reader, template)
    notes = (*reader.notes, *guesses, *([hint] if hint else []))
    return OpenCorpus(reader, mapping, name or corpus_name(sources[0]), notes)


def selection(
    where: list[str] | None,
    limit: int | None,
    sample: int | None,
    seed: int,
    group_by: list[str] | None = None,
    only_new: bool = False,
) -> Selection:
    """What the options select.

    :raises UsageError: for a condition that is none, and for a limit beside a sample.
    """
    if limit is not None and sample is not None:
        raise UsageError("--limit takes the first documents, --sample any: give one")
    return Selection(tuple(map(Condition.parse, where or ())), limit, sample, seed, tuple(group_by or ()), only_new)


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    """The system prompt that options give.

    :raises UsageError: for two of them, a file that can't be read, and an empty one.
    """
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


def unescaped(template: str) -> str:
    r"""A template as meant: ``\n`` and ``\t``, which shells leave as they are, become line ends and tabs."""
    return template.replace("\\n", "\n").replace("\\t", "\t")


def corpus_name(source: str) -> str:
    """What a corpus is called if nobody says: its file's or folder's name without endings."""
    if source == "-":
        return "stdin"
    plain = source.partition("?")[0].rstrip("/")
    name = Path(plain).name or Path(plain).resolve().name
    for ending in _ENDINGS:
        name = name.removesuffix(ending) or name
    return name
