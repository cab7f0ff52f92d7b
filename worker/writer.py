"""Finished rows to Postgres in batches, under the chunk's fencing token."""

import logging
import time

import psycopg
from psycopg.types.json import Jsonb
from tenacity import Retrying, before_sleep_log, retry_if_exception, stop_after_delay, wait_random_exponential

from schemas.database import Pool, queries
from schemas.outcomes import LeaseLost, Outcome, Reason, RowFinal
from schemas.settings import Settings
from worker.lease import Lease
from worker.row import Row, final_row

logger = logging.getLogger(__name__)

#: Classes of SQLSTATE (PostgreSQL's manual, appendix A) that pass by themselves, whatever the statement was.
_TRANSIENT_CLASSES = (
    "08",  # the connection was lost, refused or reset
    "40",  # rolled back: deadlock, serialization failure
    "53",  # disk full, out of memory, too many connections
    "57",  # cancelled by the statement timeout; the server shuts down, crashed, starts up or recovers
    "58",  # the server's own disk or system fails
)
#: The same of classes in which other errors stay.
_TRANSIENT_STATES = (
    "25006",  # read-only: a failover is not over, or the provider guards a disk that is nearly full
    "25P03",  # the session was closed: idle in a transaction
    "25P04",  # the transaction took too long
    "55006",  # the object is in use
    "55P03",  # the lock is not available
)
#: What Postgres says of a value that it can't take: malformed, out of range, too large, too deeply nested.
_REFUSED_VALUE = (
    psycopg.DataError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
)
#: First pause before another try, in seconds, doubled each time: a deadlock is over in milliseconds.
FIRST_PAUSE_S = 0.1
#: Longest pause, in seconds: the server's return is noticed soon.
MAX_PAUSE_S = 5.0


def transient(error: BaseException) -> bool:
    """Whether the same statement may succeed later: the server's trouble, not the statement's or its values'.

    Constraints, missing tables and missing rights stay. An error without a SQLSTATE is the client's: a connection that
    broke or could not be had in time.
    """
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate[:2] in _TRANSIENT_CLASSES or error.sqlstate in _TRANSIENT_STATES


def retrying(settings: Settings) -> Retrying:
    """Tries again what is transient, with growing pauses, for ``retry_s``."""
    return Retrying(
        retry=retry_if_exception(transient),
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S),
        stop=stop_after_delay(settings.retry_s),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    )


class RowWriter:
    """Collects the rows of one chunk and writes them when there are enough or the oldest has waited long enough."""

    def __init__(self, pool: Pool, settings: Settings, lease: Lease, worker: str, engine_id: int) -> None:
        """:param engine_id: what serves these rows, in the table engines."""
        self._pool = pool
        self._settings = settings
        self._lease = lease
        self._worker = worker
        self._engine_id = engine_id
        self._rows: list[Row] = []
        self._oldest = 0.0

    def add(self, row: Row) -> None:
        """Take a row; write the batch if it is full."""
        if not self._rows:
            self._oldest = time.monotonic()
        self._rows.append(row)
        if len(self._rows) >= self._settings.write_batch_rows:
            self.flush()

    def seconds_to_flush(self) -> float | None:
        """Seconds until the oldest row has waited long enough; None while there is none."""
        if not self._rows:
            return None
        return max(0.0, self._oldest + self._settings.write_interval_s - time.monotonic())

    def flush(self) -> None:
        """Write what there is.

        :raises LeaseLost: when the chunk is no longer ours; nothing was written.
        :raises psycopg.Error: when Postgres stayed in trouble for ``retry_s``.
        """
        rows, self._rows = self._rows, []
        if rows:
            self._write(rows)

    def _write(self, rows: list[Row]) -> None:
        if self._lease.lost.is_set():
            raise LeaseLost(str(self._lease))
        try:
            for attempt in retrying(self._settings):
                with attempt, self._pool.connection() as connection:
                    answer = queries.write_rows(
                        connection,
                        job_id=self._lease.job_id,
                        chunk_no=self._lease.chunk_no,
                        attempt=self._lease.attempt,
                        worker=self._worker,
                        engine_id=self._engine_id,
                        rows=Jsonb([row.as_json() for row in rows]),
                    )
        except _REFUSED_VALUE as error:
            self._write_apart(rows, error)
            return
        if not answer["held"]:
            self._lease.lost.set()
            raise LeaseLost(str(self._lease))

    def _write_apart(self, rows: list[Row], error: psycopg.Error) -> None:
        """Postgres refused a value: find its row by halving, so that the others are written as they are."""
        if len(rows) > 1:
            middle = len(rows) // 2
            self._write(rows[:middle])
            self._write(rows[middle:])
            return
        if rows[0].reason_code == Reason.BAD_CHARACTERS:  # it was not the label
            raise error
        logger.error("%s, row %d: Postgres refused the label: %s", self._lease, rows[0].ordinal, error)
        final = RowFinal(Outcome.INVALID, Reason.BAD_CHARACTERS, f"Postgres refused the label: {error}")
        self._write([final_row(rows[0].ordinal, final, tries=rows[0].tries)])
