"""Finished rows to Postgres in batches, under the chunk's fencing token."""

import logging
import time

import psycopg
from psycopg.types.json import Jsonb

from schemas.database import queries
from schemas.outcomes import LeaseLost, Outcome, Reason, RowFinal
from schemas.pool import Pool
from schemas.settings import Settings
from worker.lease import Lease
from worker.retries import retrying
from worker.row import Row, final_row

logger = logging.getLogger(__name__)

#: What Postgres says of a value that it can't take: malformed, out of range, too large, too deeply nested.
_REFUSED_VALUE = (
    psycopg.DataError,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
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
            for one_try in retrying(self._settings):
                with one_try, self._pool.connection() as connection:
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
