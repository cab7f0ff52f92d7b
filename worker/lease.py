"""Leases on chunks: claimed, renewed while the chunk is worked, given back or finished under a fencing token."""

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from schemas.database import Pool, queries
from schemas.settings import Settings

logger = logging.getLogger(__name__)

#: A lease is renewed this many times before it would run out, so that one slow answer loses nothing.
RENEWALS_A_LEASE = 3


@dataclass(eq=False)
class Lease:
    """A chunk that this worker holds. ``attempt`` is the fencing token of every write for it."""

    job_id: int
    chunk_no: int
    attempt: int
    first_ordinal: int
    last_ordinal: int
    size: int
    corpus_id: int
    label_spec_id: int
    #: Set when somebody else holds the chunk now, or may: its rows are no longer ours to write.
    lost: threading.Event = field(default_factory=threading.Event)
    renewed_at: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"job {self.job_id} chunk {self.chunk_no} (attempt {self.attempt})"


class LeaseKeeper:
    """Claims chunks and renews all leases of this worker from one thread, one statement a round."""

    def __init__(self, pool: Pool, settings: Settings, owner: str) -> None:
        """:param owner: the worker's name, kept on the chunk for people to see."""
        self._pool = pool
        self._settings = settings
        # Two processes of one name may meet while both load their engines: a lease is one process's.
        self._owner = f"{owner}/{secrets.token_hex(4)}"
        #: By job and chunk; None while the claim is on its way.
        self._held: dict[tuple[int, int], Lease | None] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def claim(self, job_id: int, chunk_no: int) -> Lease | None:
        """Take the chunk's lease, or say (log) why it is not to be had and return None."""
        key = (job_id, chunk_no)
        with self._lock:
            # A broker that lost its connection delivers what is being worked on once more, to the same worker.
            if key in self._held:
                logger.info("job %d chunk %d is not to be claimed: this worker works on it", job_id, chunk_no)
                return None
            self._held[key] = None
        lease = None
        try:
            lease = self._claim(job_id, chunk_no)
        finally:
            with self._lock:
                if lease is None:
                    del self._held[key]
                else:
                    self._held[key] = lease
        return lease

    def _claim(self, job_id: int, chunk_no: int) -> Lease | None:
        with self._pool.connection() as connection:
            row = queries.claim_chunk(
                connection,
                job_id=job_id,
                chunk_no=chunk_no,
                owner=self._owner,
                lease_s=self._settings.lease_s,
                model=self._settings.model,
            )
            if row is None:
                standing = queries.chunk_standing(connection, job_id=job_id, chunk_no=chunk_no)
                logger.info("job %d chunk %d is not to be claimed: %s", job_id, chunk_no, _why(standing))
                # Its worker may have died between the last chunk's end and the job's.
                queries.finish_job(connection, job_id=job_id)
                return None
        return Lease(**row)

    def drop(self, lease: Lease) -> None:
        """Renew this lease no more: its chunk is finished, given back or lost."""
        with self._lock:
            self._held.pop((lease.job_id, lease.chunk_no), None)

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(self._settings.lease_s / RENEWALS_A_LEASE):
            with self._lock:
                held = [lease for lease in self._held.values() if lease is not None]
            if held:
                self._renew(held)

    def _renew(self, held: list[Lease]) -> None:
        asked_at = time.monotonic()
        try:
            with self._pool.connection() as connection:
                kept = {
                    (row["job_id"], row["chunk_no"], row["attempt"])
                    for row in queries.renew_leases(
                        connection,
                        lease_s=self._settings.lease_s,
                        held=Jsonb([{"job_id": x.job_id, "chunk_no": x.chunk_no, "attempt": x.attempt} for x in held]),
                    )
                }
        except (psycopg.Error, OSError) as error:
            logger.warning("leases not renewed: %s", error)
            for lease in held:
                if asked_at - lease.renewed_at > self._settings.lease_s:
                    # Nobody need have taken it, but from now on somebody may.
                    lease.lost.set()
            return
        for lease in held:
            if (lease.job_id, lease.chunk_no, lease.attempt) in kept:
                lease.renewed_at = asked_at
            else:
                lease.lost.set()


def _why(standing: dict[str, Any] | None) -> str:
    if standing is None:
        return "there is no such chunk"
    if standing["leased"]:
        return f"{standing['lease_owner']} works on it"
    return f"chunk {standing['chunk_state']}, job {standing['job_state']}, model {standing['model']}"
