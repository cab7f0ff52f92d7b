"""A job's progress as it happens: polls Postgres gently, survives its restarts, says when nothing moves."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from producer.standing import ENDED, finished_rows, labelled_in_run, rows_per_s, unknown_job
from schemas.database import Connection, connect, queries
from schemas.errors import DatabaseUnavailable
from schemas.settings import Settings

#: Seconds between two polls at least: people don't read faster.
POLL_S = 1.0
#: Sleep at least so many times as the query took: watching costs the database a fifth of one core at most.
QUERY_SHARE = 4
#: Seconds over which the rate is taken: long enough to cover several writes of every worker.
RATE_WINDOW_S = 30.0
#: Seconds without a new row after which something is likely wrong: a chunk's first rows come sooner.
STALL_S = 60.0
#: Seconds to try to reach Postgres again: a restart takes a few, a failover under a minute.
RECONNECT_S = 120.0
#: Seconds between two tries at most.
RECONNECT_WAIT_S = 5.0


@dataclass(frozen=True)
class Reading:
    """A job's ledger at one moment, with its rate (rows a second; of an ended job over its newest run) and time left.

    ``still_s``: since the last new row. ``running_s``: since this run's first chunk was claimed, until its end.
    """

    state: str
    model: str
    ledger: dict[str, Any]
    rate: float
    still_s: float
    running_s: float | None = None
    state_reason: str | None = None

    @property
    def rows(self) -> int:
        """Rows so far, whatever their outcome."""
        return finished_rows(self.ledger)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at this rate; None when there is no rate."""
        return self.ledger["pending"] / self.rate if self.rate else None

    @property
    def stalled(self) -> bool:
        """Whether rows should come, and none has for a while."""
        return self.state in ("queued", "running") and self.still_s >= STALL_S

    @property
    def ended(self) -> bool:
        """Whether the job will not change any more."""
        return self.state in ENDED

    @property
    def measuring(self) -> bool:
        """Whether it is too early to say that no rows come."""
        return not self.ended and not self.rate and self.still_s < RATE_WINDOW_S


@dataclass
class RowRate:
    """Rows a second over a moving window."""

    points: deque[tuple[float, int]] = field(default_factory=deque)
    moved_at: float = 0.0

    def add(self, now: float, rows: int) -> float:
        if not self.points or rows != self.points[-1][1]:
            self.moved_at = now
        self.points.append((now, rows))
        while len(self.points) > 2 and now - self.points[1][0] >= RATE_WINDOW_S:
            self.points.popleft()
        began, first = self.points[0]
        return (rows - first) / (now - began) if now > began else 0.0


class Watcher:
    """Polls one job until it ends.

    :param lost: told once, in words, when Postgres went away and is being tried again.
    """

    def __init__(self, settings: Settings, job_id: int, lost: Callable[[str], None]) -> None:
        self._settings = settings
        self._job_id = job_id
        self._lost = lost
        self._rate = RowRate()

    def readings(self) -> Iterator[Reading]:
        """A reading at once and then one a poll; the last has ``ended``. The consumer may stop at any time.

        :raises UsageError: for a job that does not exist.
        :raises DatabaseUnavailable: at the start, or when Postgres does not come back.
        """
        connection = connect(self._settings, "producer watch")
        try:
            while True:
                began = time.monotonic()
                try:
                    row = queries.job_progress(connection, job_id=self._job_id)
                except psycopg.OperationalError as error:
                    connection.close()
                    connection = self._reconnect(error)
                    continue
                if row is None:
                    raise unknown_job(connection, self._job_id)
                now = time.monotonic()
                reading = self._reading(connection, row, now)
                yield reading
                if reading.ended:
                    return
                time.sleep(max(POLL_S, QUERY_SHARE * (now - began)))
        finally:
            connection.close()

    def _reading(self, connection: Connection, row: dict[str, Any], now: float) -> Reading:
        state, model, running_s = row.pop("state"), row.pop("model"), row.pop("running_s")
        reason = row.pop("state_reason")
        rows = finished_rows(row)
        rate = self._rate.add(now, rows)
        if state in ENDED:
            rate = rows_per_s(labelled_in_run(connection, self._job_id, row), running_s) or 0.0
        return Reading(state, model, row, rate, now - self._rate.moved_at, running_s, reason)

    def _reconnect(self, error: psycopg.Error) -> Connection:
        cause = (str(error).strip().splitlines() or ["closed"])[0]
        self._lost(f"the connection to Postgres was lost ({cause}): trying again for {RECONNECT_S:.0f} s")
        retrying = Retrying(
            retry=retry_if_exception_type(DatabaseUnavailable),
            stop=stop_after_delay(RECONNECT_S),
            wait=wait_random_exponential(max=RECONNECT_WAIT_S),
            reraise=True,
        )
        return retrying(connect, self._settings, "producer watch")
