"""Alembic's entry: connects as the settings say and compares only what is ours."""

from typing import Any

from alembic import context
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine, pool, text

from schemas.settings import Settings
from schemas.tables import SCHEMA, Table


def _url(settings: Settings) -> URL:
    given = conninfo_to_dict(settings.database_url.get_secret_value())
    parts = {key: str(value) for key, value in given.items() if value is not None}
    known = {key: parts.pop(key, None) for key in ("user", "password", "host", "port", "dbname")}
    return URL.create(
        "postgresql+psycopg",
        username=known["user"],
        password=known["password"],
        host=known["host"],
        port=int(known["port"]) if known["port"] else None,
        database=known["dbname"],
        query=parts,
    )


def _include_object(_: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    return not (kind == "table" and reflected and compare_to is None and name == "alembic_version")


def _include_name(name: str | None, kind: str, _: Any) -> bool:
    return name == SCHEMA if kind == "schema" else True


# Analysts see the views and the ledger, nothing else. Each time, because the role is the operator's to create.
GRANTS = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gleaner_analyst')
        AND to_regclass('gleaner.ledger') IS NOT NULL THEN
        GRANT USAGE ON SCHEMA labels, gleaner TO gleaner_analyst;
        GRANT SELECT ON gleaner.ledger TO gleaner_analyst;
        GRANT SELECT ON ALL TABLES IN SCHEMA labels TO gleaner_analyst;
        ALTER DEFAULT PRIVILEGES IN SCHEMA labels GRANT SELECT ON TABLES TO gleaner_analyst;
    END IF;
END
$$
"""


def _run() -> None:
    settings: Settings = context.config.attributes["settings"]
    # A role called like our schema has it as its default, which Alembic then compares as if it had no name.
    engine = create_engine(_url(settings), poolclass=pool.NullPool, connect_args={"options": "-c search_path=public"})
    with engine.connect() as connection:
        # Two operators upgrading at once: the second waits, then finds nothing to do.
        connection.execute(text("SELECT pg_advisory_lock(hashtext('gleaner.migrations'))"))
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=Table.metadata,
            include_schemas=True,
            include_name=_include_name,
            include_object=_include_object,
            version_table_schema=SCHEMA,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.execute(text(GRANTS))
        connection.commit()


_run()
