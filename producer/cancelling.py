"""Closing the chunks of a job that is being cancelled: what has no row gets the row ``cancelled``."""

from collections.abc import Iterator

from schemas.database import Connection, queries

#: Chunks, and documents, a statement at most: well below a statement's time limit, whatever the chunk size is.
BATCH_CHUNKS = 100
BATCH_DOCUMENTS = 25_600
REASON = "the job was cancelled first"


def cancel_open_chunks(connection: Connection, job_id: int, worker: str) -> Iterator[int]:
    """Close the chunks that no worker holds. Yields the number of chunks, batch by batch.

    Nothing happens unless the job's state is ``cancelling``. May be ended and repeated at any time, by anybody.

    :param worker: who writes the rows.
    """
    size = queries.largest_open_chunk(connection, job_id=job_id)
    batch = min(BATCH_CHUNKS, max(1, BATCH_DOCUMENTS // max(1, size)))
    while count := queries.cancel_chunks(connection, job_id=job_id, worker=worker, reason=REASON, batch=batch):
        yield count
