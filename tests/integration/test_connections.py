"""Connections to Postgres as every process of ours opens them."""

from schemas.database import Connection, connect
from schemas.settings import Settings


def test_the_server_drops_a_client_whose_host_is_gone(database: Connection) -> None:
    # Its locks go with the connection, the reconciler's among them: the system's default keeps them for two hours.
    shown = {
        name: database.execute(f"SHOW tcp_keepalives_{name}").fetchone()[f"tcp_keepalives_{name}"]  # type: ignore[index]
        for name in ("idle", "interval", "count")
    }
    assert shown == {"idle": "10", "interval": "5", "count": "3"}


def test_the_server_compiles_no_statement_and_ends_long_ones(database: Connection) -> None:
    shown = [database.execute(f"SHOW {name}").fetchone() for name in ("jit", "statement_timeout")]
    assert shown == [{"jit": "off"}, {"statement_timeout": "1min"}]


def test_behind_a_pooler_a_connection_brings_no_settings(settings: Settings) -> None:
    # PgBouncer takes none that it does not keep track of itself. The role's are what counts then.
    with connect(settings.model_copy(update={"database_prepare": False}), "test") as connection:
        asked = connection.execute("SELECT name FROM pg_settings WHERE source = 'client' ORDER BY name").fetchall()
    assert {row["name"] for row in asked} & {"jit", "statement_timeout", "tcp_keepalives_idle"} == set()
