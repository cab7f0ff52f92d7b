"""A pool of connections to Postgres, which workers share between their threads. Commands have one connection each."""

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from schemas.database import Connection, connect, connection_options, unavailable
from schemas.settings import Settings

Pool = ConnectionPool[Connection]

#: Seconds to wait for a connection of a pool, and for which a pool tries to renew one.
POOL_WAIT_S = 5.0


def _check(connection: Connection) -> None:
    """Keep a pool from lending a connection that is broken, or that leads to a server which became a standby."""
    ConnectionPool.check_connection(connection)
    if connection.info.parameter_status("in_hot_standby") == "on":
        raise psycopg.OperationalError("the server is a standby now: another took over")


def open_pool(settings: Settings, application: str, size: int) -> Pool:
    """Open a pool of ``size`` autocommit connections, each checked when it is borrowed.

    :raises DatabaseUnavailable: when no connection comes within the connect timeout.
    """
    connect(settings, application).close()  # says why; a pool only says that it waited
    pool: Pool = ConnectionPool(
        settings.database_url.get_secret_value(),
        min_size=1,
        max_size=size,
        kwargs=connection_options(settings, application),
        # Short, both: a pool that can't connect doubles its pauses up to the second, and who waits for a connection
        # longer than that is not served by a new try. So the server's return is noticed within seconds.
        timeout=POOL_WAIT_S,
        reconnect_timeout=POOL_WAIT_S,
        check=_check,
        open=False,
    )
    try:
        pool.open(wait=True, timeout=settings.database_connect_timeout_s)
    except PoolTimeout as error:
        pool.close()
        raise unavailable(settings, error) from None
    return pool
