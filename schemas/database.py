"""A connection to Postgres and the named statements of ``schemas/sql``."""

import re
from pathlib import Path
from typing import Any

import aiosql
import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_dumps

from schemas.errors import DatabaseNotMigrated, DatabaseUnavailable
from schemas.jsontext import dump_json
from schemas.settings import Settings, where_from

Connection = psycopg.Connection[DictRow]

#: The revision of migrations/ that this version needs. Here, so that commands need not load Alembic to compare it.
REVISION = "0003"


class Statements:
    """Every statement of a folder by its name, as a function of a connection and keyword parameters.

    aiosql makes the function when it is first asked for: a command uses few, and to make all takes 15 ms.
    """

    def __init__(self, folder: Path) -> None:
        text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.sql")))
        self.texts = {match[1]: match[0] for match in re.finditer(r"(?ms)^-- name: (\w+).*?(?=^-- name: |\Z)", text)}

    def __getattr__(self, name: str) -> Any:
        if name not in self.texts:
            raise AttributeError(f"no statement {name!r}")
        function = getattr(aiosql.from_str(self.texts[name], "psycopg"), name)
        setattr(self, name, function)
        return function


queries = Statements(Path(__file__).with_name("sql"))

#: Dumps never let NaN or Infinity through: Postgres would refuse the whole batch.
set_json_dumps(dump_json)


def connection_options(settings: Settings, application: str) -> dict[str, Any]:
    """How every connection is opened, but for its address.

    :param application: the name under which Postgres lists it.
    """
    options: dict[str, Any] = {
        "autocommit": True,
        "row_factory": dict_row,
        "connect_timeout": settings.database_connect_timeout_s,
        "application_name": f"gleaner {application}",
        "prepare_threshold": 5 if settings.database_prepare else None,
        # A server that fell silent is noticed in half a minute, not in the two hours of the system's default.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    if settings.database_prepare:  # PgBouncer refuses connections that come with them
        options["options"] = (
            f"-c statement_timeout={settings.database_statement_timeout_s * 1000}"
            # A transaction of ours that does nothing for a minute belongs to a process in trouble: free its locks.
            " -c idle_in_transaction_session_timeout=60000"
            # A client that was killed must not leave its statement running, with the locks that it holds.
            " -c client_connection_check_interval=10000"
            # The same from the server's side: a host that is gone must not keep the reconciler's lock for two hours.
            " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
            # Postgres guesses that arrays in jsonb are long, and compiles for longer than our statements take.
            " -c jit=off"
        )
    return options


def database_address(settings: Settings) -> str:
    """Where the database is, without the password: for messages. Settings have checked that the URL is one."""
    parts = psycopg.conninfo.conninfo_to_dict(settings.database_url.get_secret_value())
    return f"{parts.get('user', '')}@{parts.get('host', '')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


#: What libpq and Postgres say to a client with the wrong name, password or database: such an error has no SQLSTATE.
_REFUSALS = ("authentication failed", "no password supplied", "pg_hba.conf", '" does not exist')


def unavailable(settings: Settings, error: Exception) -> DatabaseUnavailable:
    """The error to show for a failed connection."""
    # libpq's indented lines are hints; of several hosts tried, the last line is the last one's.
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    cause = lines[-1] if lines else type(error).__name__
    if any(words in cause for words in _REFUSALS):
        remedy = "It is up and let us not in: check user, password and database in GLEANER_DATABASE_URL"
    else:
        remedy = "Start it (`make up` for a local one) or set GLEANER_DATABASE_URL"
    return DatabaseUnavailable(
        f"no connection to Postgres at {database_address(settings)}: {cause.rstrip('.')}. "
        f"{remedy}{where_from(settings, 'database_url')}."
    )


def connect(settings: Settings, application: str) -> Connection:
    """Open one autocommit connection with dict rows.

    :raises DatabaseUnavailable: when there is no server, no database or no right.
    """
    try:
        return psycopg.connect(settings.database_url.get_secret_value(), **connection_options(settings, application))
    except psycopg.Error as error:
        raise unavailable(settings, error) from None


def database_revision(connection: Connection) -> str | None:
    """The revision that the last migration left; None before the first `producer db upgrade`."""
    if not queries.is_migrated(connection):
        return None
    revision: str | None = queries.database_revision(connection)
    return revision


def require_migrated(connection: Connection) -> None:
    """Check that the database is at :data:`REVISION`.

    :raises DatabaseNotMigrated: names both and the remedy.
    """
    revision = database_revision(connection)
    if revision != REVISION:
        raise DatabaseNotMigrated(
            f"the database is at revision {revision or 'none'}, this version needs {REVISION}: "
            "run `producer db upgrade`."
        )
