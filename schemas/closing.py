"""The end of a job: closed once no chunk of it is open, by whoever notices first."""

from schemas.database import Connection, queries


def close_job(connection: Connection, job_id: int) -> str | None:
    """Close a job without an open chunk and freeze its counts. Its new state, if this closed it.

    Costs little where there is nothing to close. Of two workers that finish the last two chunks at once, the later one
    sees both done.

    :raises psycopg.Error: nothing was closed; it may be repeated.
    """
    with connection.transaction():
        if queries.lock_closable(connection, job_id=job_id) is None:
            return None
        # Counting the rows of a large job may take longer than a statement may.
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        state: str | None = queries.close_locked(connection, job_id=job_id)
    return state
