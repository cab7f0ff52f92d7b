"""Analysts' views: one a label spec version, with real column types, and one a label schema for the newest."""

from typing import Any

from psycopg import errors, sql

from schemas.database import Connection
from schemas.errors import GleanerError, UsageError
from schemas.grammar import cases_of
from schemas.label_spec import LabelSpec

#: Views live in a schema of their own, so that analysts see columns and not our book-keeping.
VIEW_SCHEMA = "labels"
#: Bytes of an identifier; Postgres cuts longer ones in silence.
MAX_IDENTIFIER_BYTES = 63
#: Columns of a view.
MAX_COLUMNS = 1600
#: Largest value of a bigint.
MAX_BIGINT = 2**63 - 1
#: A label field with one of these names gets this prefix in the view, so that both can be selected.
FIELD_PREFIX = "label_"
#: Group role that may read the views, granted where it exists.
ANALYST_ROLE = "gleaner_analyst"

#: The book-keeping columns, before and after the label's own.
_BEFORE = {"job_id": "l.job_id", "document_id": "d.external_id", "outcome": "l.outcome"}
_AFTER = {
    "reason_code": "l.reason_code",
    "reason": "l.reason",
    "raw_output": "l.raw_output",
    "dropped_tokens": "l.dropped_tokens",
    "parts": "l.parts",
    "model": "j.model",
    "engine": "e.info ->> 'engine'",
    "engine_version": "e.info ->> 'version'",
    "model_revision": "e.info ->> 'revision'",
    "meta": "d.meta",
    "document_flags": "d.flags",
    "worker": "l.worker",
    "labeled_at": "l.created_at",
}

_SCALARS = {"string": "text", "integer": "bigint", "number": "double precision", "boolean": "boolean"}
_STRING_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}


def column_type(schema: dict[str, Any]) -> str:
    """The Postgres type of a field: scalars and lists of scalars by name, everything else ``jsonb``."""
    cases = cases_of(schema)
    types = {_plain_type(branch) for branch in (schema[cases] if cases else [schema])} - {None}
    if types == {"bigint", "double precision"}:
        return "double precision"
    only = types.pop() if len(types) == 1 else None
    return only or "jsonb"


def _plain_type(schema: dict[str, Any]) -> str | None:
    """The type of one branch; None for null, which every column allows."""
    if cases_of(schema):
        return column_type(schema)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values:
        return "text" if all(isinstance(v, str) or v is None for v in values) else _type_of_values(values)
    kind = schema.get("type")
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if one != "null"]
    if len(kinds) != 1:
        return "jsonb" if kinds else None
    if kinds[0] == "array":
        items = None if "prefixItems" in schema else schema.get("items")
        inner = column_type(items) if isinstance(items, dict) else "jsonb"
        return f"{inner}[]" if inner != "jsonb" and not inner.endswith("[]") else "jsonb"
    if kinds[0] == "string":
        return _STRING_FORMATS.get(schema.get("format", ""), "text")
    return _SCALARS.get(str(kinds[0]), "jsonb")


def _type_of_values(values: list[Any]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int, float}:
        return "double precision"
    if kinds == {int} and not all(value is None or -MAX_BIGINT <= value <= MAX_BIGINT for value in values):
        return "numeric"  # a bigint that one row does not fit would fail every query of the view
    return (
        {bool: "boolean", int: "bigint", float: "double precision"}.get(kinds.pop(), "jsonb")
        if len(kinds) == 1
        else "jsonb"
    )


def column_names(spec: LabelSpec) -> dict[str, str]:
    """The view's column of each label field.

    :raises UsageError: for a name that Postgres would cut, two fields that would share a column, or too many fields.
    """
    taken = _BEFORE.keys() | _AFTER.keys()
    most = MAX_COLUMNS - len(taken)
    if len(spec.json_schema["properties"]) > most:
        raise UsageError(f"{len(spec.json_schema['properties'])} fields are more columns than a view can have: {most}")
    columns: dict[str, str] = {}
    for field in spec.json_schema["properties"]:
        column = FIELD_PREFIX + field if field in taken else field
        if not field or len(column.encode()) > MAX_IDENTIFIER_BYTES or "\x00" in column:
            raise UsageError(
                f"the field {field!r} can't be a column: give it a name of 1 to {MAX_IDENTIFIER_BYTES} bytes"
            )
        if column in columns.values():
            raise UsageError(f"two fields would share the column {column!r}: rename one")
        columns[field] = column
    return columns


def view_name(spec: LabelSpec, version: int) -> str:
    """The view of one version: ``papers_v1``."""
    return f"{spec.name}_v{version}"


def create_views(connection: Connection, spec: LabelSpec, spec_id: int, version: int) -> None:
    """Create the view of this version, and point the label schema's own view at its newest version.

    :raises GleanerError: when somebody's own view hangs on the newest version's and its columns have changed.
    """
    select = _select(spec, spec_id)
    with connection.transaction():
        # Two submitters of one schema at once: the second waits, then finds the views as it wants them.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('gleaner.views'))")
        _create(
            connection,
            view_name(spec, version),
            f"Rows of label spec {spec.name}, version {version}.",
            select,
            spec,
        )
        newest = connection.execute(
            "SELECT max(version) AS version FROM gleaner.label_specs WHERE name = %s", [spec.name]
        ).fetchone()
        if newest is not None and newest["version"] == version:
            comment = f"Rows of the newest version of label schema {spec.name}: {version}."
            _create(connection, spec.name, comment, select, spec)


def _create(connection: Connection, name: str, comment: str, select: sql.Composed, spec: LabelSpec) -> None:
    view = sql.Identifier(VIEW_SCHEMA, name)
    create = sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(view, select)
    try:
        with connection.transaction():
            connection.execute(create)
    except errors.InvalidTableDefinition:
        # Replacing can't drop, rename or retype a column, and a newer version may have done so.
        try:
            connection.execute(sql.SQL("DROP VIEW {}").format(view))
        except errors.DependentObjectsStillExist as error:
            raise GleanerError(
                f"the view {VIEW_SCHEMA}.{name} has new columns, but other views hang on it: "
                f"{error.diag.message_detail}. "
                f"Let them read {VIEW_SCHEMA}.{name}_v1 and the like, which never change, then run this again."
            ) from None
        connection.execute(create)
    connection.execute(sql.SQL("COMMENT ON VIEW {} IS {}").format(view, sql.Literal(comment)))
    for field, column in column_names(spec).items():
        description = spec.json_schema["properties"][field].get("description")
        if description:
            connection.execute(
                sql.SQL("COMMENT ON COLUMN {} IS {}").format(
                    sql.Identifier(VIEW_SCHEMA, name, column), sql.Literal(description)
                )
            )
    role = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ANALYST_ROLE]).fetchone()
    if role:
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(view, sql.Identifier(ANALYST_ROLE)))


def _select(spec: LabelSpec, spec_id: int) -> sql.Composed:
    columns = column_names(spec)
    chosen = [sql.SQL("{} AS {}").format(sql.SQL(source), sql.Identifier(name)) for name, source in _BEFORE.items()]
    chosen += [
        sql.SQL("r.{} AS {}").format(sql.Identifier(field), sql.Identifier(column)) for field, column in columns.items()
    ]
    chosen += [sql.SQL("{} AS {}").format(sql.SQL(source), sql.Identifier(name)) for name, source in _AFTER.items()]
    types = [
        sql.SQL("{} {}").format(sql.Identifier(field), sql.SQL(column_type(spec.json_schema["properties"][field])))
        for field in columns
    ]
    return sql.SQL(
        "SELECT {} FROM gleaner.labels AS l"
        " JOIN gleaner.jobs AS j ON j.id = l.job_id"
        " JOIN gleaner.documents AS d ON d.corpus_id = j.corpus_id AND d.ordinal = l.ordinal"
        " LEFT JOIN gleaner.engines AS e ON e.id = l.engine_id"
        " LEFT JOIN LATERAL jsonb_to_record(l.label) AS r({}) ON true"
        " WHERE j.label_spec_id = {}"
    ).format(sql.SQL(", ").join(chosen), sql.SQL(", ").join(types), sql.Literal(spec_id))
