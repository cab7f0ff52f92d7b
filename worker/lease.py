"""Leases on chunks: claimed, renewed while the chunk is worked, given back or finished under a fencing token."""

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from schemas.closing import close_job
from schemas.database import Connection, connect, queries
from schemas.jsontext import make_storable
from schemas.pool import Pool
from schemas.settings import Settings
from worker.retries import retrying

logger = logging.getLogger(__name__)

#: Seconds between looks at whether the jobs of the held chunks were cancelled: people wait for it.
CONTROL_S = 2.0
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
    #: Set when the job was cancelled.
    withdrawn: threading.Event = field(default_factory=threading.Event)
    renewed_at: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """The chunk, for people."""
        return f"job {self.job_id} chunk {self.chunk_no}"

    def __str__(self) -> str:
        return f"{self.name} (attempt {self.attempt})"


@dataclass(frozen=True)
class _Release:
    """A chunk on its way back, and why."""

    lease: Lease
    words: str
    failed: int


class LeaseKeeper:
    """Claims chunks and renews all leases of this worker from one thread, one statement a round."""

    def __init__(self, pool: Pool, settings: Settings, owner: str) -> None:
        """:param owner: the worker's name, kept on the chunk for people to see."""
        self._pool = pool
        self._settings = settings
        self._worker = owner
        # Two processes of one name may meet while both load their engines: a lease is one process's.
        self._owner = f"{owner}/{secrets.token_hex(4)}"
        #: By job and chunk.
        self._held: dict[tuple[int, int], Lease] = {}
        self._claiming = threading.Lock()
        #: Whether a claim may have succeeded without our hearing of it.
        self._answer_lost = False
        #: Chunks that could not be given back yet.
        self._unreleased: list[_Release] = []
        self._lock = threading.Lock()
        self._renewal_s = settings.lease_s / RENEWALS_A_LEASE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_for_ever, name="leases", daemon=True)

    def start(self) -> None:
        """Free what a process of our name left when it died, and begin to renew.

        :raises psycopg.Error: when Postgres can't be reached.
        """
        for left in retrying(self._settings)(self._release_left):
            logger.warning(
                "job %d chunk %d, left by a process of this name, is %s again (%d failures)",
                left["job_id"], left["chunk_no"], left["state"], left["failures"],
            )  # fmt: skip
        self._thread.start()

    def _release_left(self) -> list[dict[str, Any]]:
        with self._pool.connection() as connection:
            return list(
                queries.release_left(
                    connection, worker=self._worker, owner=self._owner, max_failures=self._settings.chunk_max_failures
                )
            )

    def stop(self) -> None:
        """Renew no more; try once more to free what could not be freed yet."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._release_late()

    def free_all(self, words: str) -> None:
        """Give every chunk back that this process holds, on its way out: what it still writes for them is refused.

        Over a connection of its own, because those of the pool may all be held up.

        :raises DatabaseUnavailable: :raises psycopg.Error: nothing was given back.
        """
        with connect(self._settings, "leaving") as connection:
            self._release_owned(connection, [], words)

    def quarantined_waits(self) -> bool:
        """Whether a chunk waits that must have the engine for itself, and none is in work anywhere."""
        with self._pool.connection() as connection:
            waits: bool = queries.quarantined_waits(connection, model=self._settings.model)
        return waits

    def claim_quarantined(self) -> Lease | None:
        """Take the lease of a quarantined chunk, if there is one."""
        return self._claim(queries.claim_quarantined)

    def claim(self, job_id: int, chunk_no: int) -> Lease | None:
        """Take the lease of the chunk that a message names, or of one that comes before it.

        A message is a permit for one chunk: it is used up by the job with the highest priority, now and then by the
        oldest job, and a second message for a chunk by any that waits. None, and a word in the log, if none does.
        """
        by_age = random.random() < self._settings.fair_share
        lease = None if by_age else self._claim(queries.claim_named, job_id=job_id, chunk_no=chunk_no)
        lease = lease or self._claim(queries.claim_waiting, by_age=by_age)
        if lease is None:
            with self._pool.connection() as connection:
                standing = queries.chunk_standing(connection, job_id=job_id, chunk_no=chunk_no)
                logger.info("job %d chunk %d is not to be claimed: %s", job_id, chunk_no, _why(standing))
                # Its worker may have died between the last chunk's end and the job's.
                close_job(connection, job_id)
        return lease

    def _claim(self, statement: Callable[..., dict[str, Any] | None], **what: Any) -> Lease | None:
        # One at a time, so that a chunk which is ours by Postgres and not in our list is one whose answer was lost.
        with self._claiming, self._pool.connection() as connection:
            if self._answer_lost:
                self._release_owned(connection, self._known(), "the answer to its claim was lost")
                self._answer_lost = False
            try:
                row = statement(
                    connection,
                    owner=self._owner,
                    lease_s=self._settings.lease_s,
                    model=self._settings.model,
                    **what,
                )
            except psycopg.Error:
                self._answer_lost = True
                raise
            if row is None:
                return None
            lease = Lease(**row)
            with self._lock:
                self._held[lease.job_id, lease.chunk_no] = lease
            return lease

    def _known(self) -> list[Lease]:
        """The leases that are held, or on their way back."""
        with self._lock:
            return [*self._held.values(), *(release.lease for release in self._unreleased)]

    def _release_owned(self, connection: Connection, but: list[Lease], words: str) -> None:
        queries.release_owned(
            connection,
            owner=self._owner,
            held=_keys(but),
            error=words,
            max_failures=self._settings.chunk_max_failures,
        )

    def release(self, lease: Lease, words: str, failed: int = 0) -> int:
        """Give a chunk back, so that the next claim need not wait for the lease to run out.

        Where Postgres can't be reached it is tried again until it can; by then the lease may have run out.

        :param failed: 1 when the chunk itself went wrong, or the engine while the chunk was there.
        :returns: how often that has happened, as far as can be told.
        """
        release = _Release(lease, make_storable(words), failed)
        try:
            return self._release(release)
        except (psycopg.Error, OSError) as error:
            logger.warning("%s: lease not freed yet: %s", lease, error)
            with self._lock:
                self._unreleased.append(release)
            return failed

    def _release(self, release: _Release) -> int:
        with self._pool.connection() as connection:
            released = queries.release_chunk(
                connection,
                job_id=release.lease.job_id,
                chunk_no=release.lease.chunk_no,
                attempt=release.lease.attempt,
                error=release.words,
                failed=release.failed,
                max_failures=self._settings.chunk_max_failures,
            )
        return int(released["failures"]) if released else release.failed

    def _release_late(self) -> None:
        with self._lock:
            late, self._unreleased = self._unreleased, []
        for number, release in enumerate(late):
            try:
                self._release(release)
            except (psycopg.Error, OSError):
                with self._lock:
                    self._unreleased += late[number:]
                return

    def drop(self, lease: Lease) -> None:
        """Renew this lease no more: its chunk is finished, given back or lost."""
        with self._lock:
            if self._held.get((lease.job_id, lease.chunk_no)) is lease:  # not a later lease of ours on the same chunk
                del self._held[lease.job_id, lease.chunk_no]

    def _keep_for_ever(self) -> None:
        renewed_at = time.monotonic()
        pause = self._renewal_s
        while not self._stop.wait(min(CONTROL_S, pause)):
            try:
                self._release_late()
                with self._lock:
                    held = list(self._held.values())
                if held and time.monotonic() - renewed_at >= pause:
                    renewed_at = time.monotonic()
                    self._renew(held)
                self._withdraw(held)
            except Exception:  # every lease depends on this thread
                logger.exception("leases: a look failed")

    def _withdraw(self, held: list[Lease]) -> None:
        """Notice jobs that were cancelled."""
        if not held:
            return
        try:
            with self._pool.connection() as connection:
                cancelled = {
                    row["id"]
                    for row in queries.jobs_to_leave(connection, job_ids=list({lease.job_id for lease in held}))
                }
        except (psycopg.Error, OSError):
            return  # renewing says so; the next look comes soon
        for lease in held:
            if lease.job_id in cancelled:
                lease.withdrawn.set()

    def _renew(self, held: list[Lease]) -> None:
        asked_at = time.monotonic()
        try:
            with self._pool.connection() as connection, connection.transaction():
                # Held up by somebody's lock, it would be too late for all leases.
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{self._renewal_s / 2 * 1000:.0f}"])
                kept = {
                    (row["job_id"], row["chunk_no"], row["attempt"])
                    for row in queries.renew_leases(
                        connection,
                        lease_s=self._settings.lease_s,
                        held=_keys(held),
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


def _keys(leases: list[Lease]) -> Jsonb:
    return Jsonb([{"job_id": x.job_id, "chunk_no": x.chunk_no, "attempt": x.attempt} for x in leases])


def _why(standing: dict[str, Any] | None) -> str:
    if standing is None:
        return "there is no such chunk"
    if standing["leased"]:
        return f"{standing['lease_owner']} works on it"
    return f"chunk {standing['chunk_state']}, job {standing['job_state']}, model {standing['model']}"
