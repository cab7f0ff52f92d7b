"""Connections to Postgres as every process of ours opens them."""

from schemas.database import Connection


def test_the_server_drops_a_client_whose_host_is_gone(database: Connection) -> None:
    # Its locks go with the connection, the reconciler's among them: the system's default keeps them for two hours.
    shown = {
        name: database.execute(f"SHOW tcp_keepalives_{name}").fetchone()[f"tcp_keepalives_{name}"]  # type: ignore[index]
        for name in ("idle", "interval", "count")
    }
    assert shown == {"idle": "10", "interval": "5", "count": "3"}
