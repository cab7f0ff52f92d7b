"""Looks at Postgres all the time: does every ledger balance, how many rows are there, does the work go on."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from ops.soak.host import Host
from ops.soak.recovery import ChunkReading, Key, Reading, Recovery
from schemas.database import Connection
from schemas.errors import DatabaseUnavailable

#: Seconds between two readings: the resolution of times to recover.
READ_S = 0.25
#: Seconds between two readings of all ledgers, which count every row.
LEDGER_S = 5.0
#: Readings kept, to know what a worker held a moment before it left by itself: five seconds of them.
KEPT = 20

_READ = """
SELECT chunk.job_id, chunk.chunk_no, chunk.state, chunk.attempt, chunk.lease_owner, chunk.lease_until, (
    SELECT count(*) FROM gleaner.labels AS label
    WHERE label.job_id = chunk.job_id AND label.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal
) AS rows
FROM gleaner.chunks AS chunk
WHERE chunk.state = 'running' OR (chunk.job_id, chunk.chunk_no) IN (
    SELECT watched.job_id, watched.chunk_no FROM jsonb_to_recordset(%s) AS watched(job_id bigint, chunk_no integer)
)
"""
_WAITING = """
SELECT count(*) AS chunks FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.state IN ('queued', 'running') AND chunk.state IN ('queued', 'quarantined')
"""
_LEDGERS = """
SELECT job_id, state, total, pending, ok, truncated, invalid, rejected, failed, cancelled, balanced FROM gleaner.ledger
"""


@dataclass(frozen=True)
class Totals:
    """All jobs together at one moment, by the monotonic clock."""

    at: float
    documents: int
    rows: int

    @property
    def pending(self) -> int:
        """Documents without a row."""
        return self.documents - self.rows


class Observer:
    """Reads in a thread of its own; while Postgres is away it waits for it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._observe, name="observer", daemon=True)
        #: Every fault so far.
        self.recoveries: list[Recovery] = []
        self.ledgers_read = 0
        #: Ledgers that did not balance. There must be none.
        self.unbalanced: list[dict[str, Any]] = []
        self.totals = Totals(time.monotonic(), 0, 0)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. Safe to repeat."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def strike(self, kind: str, target: str, worker: str | None, seconds_ago: float = 0.0) -> Recovery:
        """Note that a fault strikes now, and which chunks are leased: by one worker, or by all.

        :param seconds_ago: when the leases are looked up; for what was noticed only after it had happened.
        """
        now = time.monotonic()
        with self._lock:
            readings = [reading for reading in self._readings if reading.at <= now - seconds_ago] or list(
                self._readings
            )
            held = {}
            if readings:
                chunks = readings[-1].chunks
                held = {
                    key: attempt
                    for key, attempt in readings[-1].leased.items()
                    if worker is None or (chunks[key].owner or "").startswith(f"{worker}@")
                }
            recovery = Recovery(kind, target, now, held)
            self.recoveries.append(recovery)
        return recovery

    def forget(self, fault: Recovery) -> None:
        """It did not come to pass."""
        with self._lock:
            self.recoveries.remove(fault)

    def read_totals(self, connection: Connection) -> Totals:
        """Read all ledgers, and note those that do not balance."""
        ledgers = connection.execute(_LEDGERS).fetchall()
        documents = sum(ledger["total"] for ledger in ledgers)
        rows = documents - sum(ledger["pending"] for ledger in ledgers)
        self.ledgers_read += 1
        self.unbalanced += [ledger for ledger in ledgers if not ledger["balanced"]]
        self.totals = Totals(time.monotonic(), documents, rows)
        return self.totals

    def open_faults(self) -> int:
        """Faults that are over, after which the work has not been seen to go on."""
        with self._lock:
            return sum(fault.over_at is not None and fault.recovered_at is None for fault in self.recoveries)

    def _observe(self) -> None:
        while not self._ending.is_set():
            try:
                with self._host.connect() as connection:
                    self._observe_on(connection)
            except (psycopg.Error, DatabaseUnavailable):
                self._ending.wait(READ_S)

    def _observe_on(self, connection: Connection) -> None:
        ledgers_at = float("-inf")
        while not self._ending.wait(READ_S):
            if time.monotonic() - ledgers_at >= LEDGER_S:
                self.read_totals(connection)
                ledgers_at = time.monotonic()
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        with self._lock:
            watched = {key for fault in self.recoveries if fault.recovered_at is None for key in fault.hanging}
        keys = Jsonb([{"job_id": job_id, "chunk_no": chunk_no} for job_id, chunk_no in watched])
        at = time.monotonic()  # before the question, so that nothing after a fault's end is taken for earlier
        waiting = connection.execute(_WAITING).fetchone()
        chunks: dict[Key, ChunkReading] = {
            (row["job_id"], row["chunk_no"]): ChunkReading(
                row["state"], row["attempt"], row["lease_owner"], row["lease_until"], row["rows"]
            )
            for row in connection.execute(_READ, [keys])
        }
        assert waiting is not None
        now = Reading(at, chunks, waiting["chunks"])
        with self._lock:
            if self._readings:
                for fault in self.recoveries:
                    fault.look(self._readings[-1], now)
            self._readings.append(now)
