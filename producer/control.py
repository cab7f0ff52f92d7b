"""A job cancelled, paused, let go on, or put before others: what people decide while it runs."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from producer.cancelling import cancel_open_chunks
from producer.progress import Progress
from producer.standing import ENDED, unknown_job
from schemas.closing import close_job
from schemas.database import Connection, queries
from schemas.errors import GleanerError

#: Seconds that workers get to give their chunks back. They notice within 2 s, then write what is finished.
GIVE_BACK_S = 15.0
#: Seconds between two looks at whether they have.
POLL_S = 0.2


@dataclass(frozen=True)
class Cancellation:
    """How far a job's cancelling is."""

    #: The job's state now: ``cancelled``; ``done`` if its last chunk was finished meanwhile; else ``cancelling``.
    state: str
    #: Whether the job had been cancelled before.
    before: bool
    #: Chunks closed by this call.
    closed: int
    #: Chunks that workers still hold, when their leases run out at the latest, and the seconds until then.
    held: int = 0
    held_until: datetime | None = None
    lease_s: float | None = None


def require_job(connection: Connection, job_id: int) -> dict[str, Any]:
    """What ``job_control`` tells of a job.

    :raises UsageError: for a job that does not exist; names those that do.
    """
    job: dict[str, Any] | None = queries.job_control(connection, job_id=job_id)
    if job is None:
        raise unknown_job(connection, job_id)
    return job


def cancel_job(connection: Connection, job_id: int, worker: str, progress: Progress) -> Cancellation:
    """Cancel a job: rows that are finished stay, every other document gets the row ``cancelled``.

    The decision is durable from the first statement on. What workers hold is closed as soon as they give it back, for
    :data:`GIVE_BACK_S`; the reconciler, or the same call again, closes the rest. May be ended and repeated at any time.

    :param worker: who writes the rows.
    :raises GleanerError: the job is done. :raises UsageError: there is no such job.
    """
    before = require_job(connection, job_id)["state"]
    if before == "done":
        raise GleanerError(f"job {job_id} is done: every document has its row, nothing is left to cancel")
    queries.request_cancel(connection, job_id=job_id)
    chunks = {row["state"]: row["chunks"] for row in queries.chunks_by_state(connection, job_id=job_id)}
    total = sum(chunks.get(state, 0) for state in ("queued", "running", "quarantined"))
    closed = 0
    deadline = None
    while True:
        for count in cancel_open_chunks(connection, job_id, worker):
            closed += count
            progress("cancelling", closed, max(closed, total))
        close_job(connection, job_id)
        state = require_job(connection, job_id)["state"]
        if state in ENDED:
            return Cancellation(state, before == "cancelled", closed)
        # Closing a large job takes a while, in which workers have time as well.
        deadline = deadline or time.monotonic() + GIVE_BACK_S
        if time.monotonic() >= deadline:
            held = queries.chunks_held(connection, job_id=job_id)
            return Cancellation(state, False, closed, held["chunks"], held["until"], held["lease_s"])
        time.sleep(POLL_S)


def pause_job(connection: Connection, job_id: int, reason: str) -> bool:
    """Let no worker claim chunks of a job; those in work are finished. False if it was paused already.

    :raises GleanerError: the job has ended or is being cancelled. :raises UsageError: there is no such job.
    """
    if require_job(connection, job_id)["state"] == "paused":
        return False
    queries.pause_job(connection, job_id=job_id, reason=reason)
    _refuse_unless(require_job(connection, job_id), ("paused",), "pause")
    return True


def resume_job(connection: Connection, job_id: int) -> dict[str, Any]:
    """Let a paused job go on. Returns the job as it was before.

    :raises GleanerError: the job has ended or is being cancelled. :raises UsageError: there is no such job.
    """
    before = require_job(connection, job_id)
    queries.resume_job(connection, job_id=job_id)
    _refuse_unless(require_job(connection, job_id), ("queued", "running"), "resume")
    return before


def set_priority(connection: Connection, job_id: int, priority: int) -> int:
    """Set the priority of a job; returns the former one. Its chunks that wait move at once.

    :raises GleanerError: the job has ended or is being cancelled. :raises UsageError: there is no such job.
    """
    before = require_job(connection, job_id)
    _refuse_unless(before, ("queued", "running", "paused"), "put before others")
    queries.set_priority(connection, job_id=job_id, priority=priority)
    return int(before["priority"])


def _refuse_unless(job: dict[str, Any], states: tuple[str, ...], what: str) -> None:
    job_id, state = job["id"], job["state"]
    if state in states:
        return
    remedy = {
        "done": f"`producer retry {job_id} --outcome failed,invalid,truncated` tries rows again",
        "cancelled": f"`producer retry {job_id} --outcome cancelled` labels what was left",
        "cancelling": f"`producer cancel {job_id}` ends it; then `producer retry {job_id} --outcome cancelled`",
    }.get(state, "try again")
    shown = "being cancelled" if state == "cancelling" else state
    raise GleanerError(f"job {job_id} is {shown}: there is nothing to {what}. {remedy}.")
