"""``producer schemas``: what ``--schema`` takes, and what was frozen from it."""

import re
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from producer.cli.output import JsonFlag, note, print_json, say
from producer.cli.tables import show_table
from schemas.database import connect, queries
from schemas.errors import DatabaseUnavailable, UsageError
from schemas.jsontext import make_storable
from schemas.label_spec import builtin_names, load_label_spec
from schemas.settings import load_settings

#: Not longer than what fits the column.
_VERSION = re.compile(r"_v(\d{1,9})$")

app = typer.Typer(add_completion=False, epilog="Example: producer schemas")


@app.callback(invoke_without_command=True)
def list_schemas(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the built-in label schemas, and the label specs in the database."""
    if context.invoked_subcommand is not None:
        return
    builtin = {name: _fields(name) for name in builtin_names()}
    frozen = _frozen()
    if as_json:
        print_json({"builtin": builtin, "frozen": frozen})
        return
    say("Built in (producer enqueue --schema NAME):")
    for name, fields in builtin.items():
        say(f"  {name}: {', '.join(fields)}")
    if frozen:
        say("Frozen in the database (views labels.NAME_vVERSION):")
        rows = [
            (
                f"{one['label_spec']}_v{one['version']}",
                str(one["jobs"]),
                f"{one['created_at']:%Y-%m-%d %H:%M}",
                one["digest"][:12],
            )
            for one in frozen
        ]
        show_table(("label spec", "jobs", "created", "digest"), rows)


@app.command(epilog="Example: producer schemas show papers")
def show(
    name: Annotated[
        str, typer.Argument(help="papers_v1 or papers (the newest) in the database; or what --schema takes.")
    ],
) -> None:
    """Print a label schema as the engine gets it: JSON."""
    version = _VERSION.search(name)
    base = name.removesuffix(version.group()) if version else name
    if version is None and (name in builtin_names() or ":" in name or name.endswith((".py", ".json"))):
        with redirect_stdout(sys.stderr):  # whatever a .py file prints is no part of our answer
            spec, _ = load_label_spec(name)
        print_json(spec.json_schema, indent=2)
        return
    with connect(load_settings(), "producer schemas") as connection:
        number = int(version.group(1)) if version else None
        row = queries.label_spec_by_name(connection, name=make_storable(base), version=number)
    if row is None:
        raise UsageError(f"no label schema {name!r}, built in or in the database: `producer schemas` lists them")
    print_json(row["json_schema"], indent=2)


def _fields(name: str) -> list[str]:
    spec, _ = load_label_spec(name)
    return list(spec.json_schema["properties"])


def _frozen() -> list[dict[str, Any]] | None:
    try:
        with connect(load_settings(), "producer schemas") as connection:
            return list(queries.list_label_specs(connection)) if queries.is_migrated(connection) else []
    except DatabaseUnavailable as error:
        # The built-in ones are worth showing without a database.
        note(f"note: {error}")
        return None
