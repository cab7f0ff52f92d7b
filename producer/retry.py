"""Rows tried again: taken out, kept as history, and their documents cut into new chunks."""

from producer.control import require_job
from producer.standing import ENDED
from schemas.database import Connection, queries
from schemas.errors import GleanerError
from schemas.outcomes import Outcome

#: Times its size that a new chunk may reach over: rows to try again lie far apart, and its statements read all between.
SPAN_CHUNKS = 64


def retry_rows(connection: Connection, job_id: int, outcomes: list[Outcome], chunk_size: int) -> int:
    """Open a job that has ended, for its rows with these outcomes, in one transaction. Returns the number of rows.

    Without such a row the job stays as it is. Its chunks wait from then on, without messages.

    :param chunk_size: documents a new chunk.
    :raises GleanerError: the job has not ended. :raises UsageError: there is no such job.
    """
    state = require_job(connection, job_id)["state"]
    if state not in ENDED:
        raise GleanerError(
            f"job {job_id} is {state}: only a job that has ended is tried again. "
            f"Wait for its end (`producer watch {job_id}`) or stop it (`producer cancel {job_id}`)."
        )
    names = [outcome.value for outcome in outcomes]
    with connection.transaction():
        # Every row of a large job may be taken: that takes longer than a statement may.
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        if not queries.count_outcomes(connection, job_id=job_id, outcomes=names):
            return 0
        corpus_id = queries.reopen_job(connection, job_id=job_id)
        if corpus_id is None:
            raise GleanerError(
                f"job {job_id} was opened by somebody else just now: `producer status {job_id}` shows it"
            )
        rows: int = queries.recut_chunks(
            connection,
            job_id=job_id,
            corpus_id=corpus_id,
            outcomes=names,
            chunk_size=chunk_size,
            span=SPAN_CHUNKS * chunk_size,
        )
        queries.keep_chunks(connection, job_id=job_id)
    return rows
