"""Closing the chunks of a job that is being cancelled: what has no row gets the row ``cancelled``."""

from collections.abc import Iterator

from schemas.database import Connection, queries

#: Chunks a statement: about 25,000 rows at the default chunk size, well below a statement's time limit.
BATCH = 100
REASON = "the job was cancelled first"


def cancel_open_chunks(connection: Connection, job_id: int, worker: str) -> Iterator[int]:
    """Close the chunks that no worker holds. Yields the number of chunks, batch by batch.

    Nothing happens unless the job's state is ``cancelling``. May be ended and repeated at any time, by anybody.

    :param worker: who writes the rows.
    """
    while count := queries.cancel_chunks(connection, job_id=job_id, worker=worker, reason=REASON, batch=BATCH):
        yield count
