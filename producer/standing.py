"""Where a job stands: its ledger, rows by reason, chunks by state, all read from Postgres."""

from typing import Any

from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.outcomes import Outcome

#: Chunks with an error that are shown: the latest attempts say enough.
SHOWN_CHUNK_ERRORS = 5
#: States that a job does not leave.
ENDED = ("done", "cancelled")
#: Jobs named when one is not found.
SHOWN_JOBS = 10


def unknown_job(connection: Connection, job_id: int) -> UsageError:
    """The error for a job that does not exist, with those that do."""
    known = [str(row["id"]) for row in queries.list_jobs(connection, live_only=False, batch=SHOWN_JOBS)]
    hint = f"the newest are {', '.join(known)}" if known else "there is none yet: start one with `producer enqueue`"
    return UsageError(f"no job {job_id}: {hint}")


def state_note(job_id: int, state: str, state_reason: str | None) -> str | None:
    """What the state of a job means to whoever waits for its rows, with the remedy; None where all goes its way."""
    if state == "paused":
        why = " ".join((state_reason or "nobody said why").split())
        return f"job {job_id} is paused ({why}): `producer resume {job_id}` lets it go on"
    if state == "cancelling":
        return f"job {job_id} is being cancelled: `producer cancel {job_id}` again, or the reconciler, ends it"
    if state == "cancelled":
        return f"job {job_id} was cancelled: `producer retry {job_id} --outcome cancelled` labels what was left"
    return None


def rows_per_s(rows: int, running_s: float | None) -> float | None:
    """Finished rows a second since the job's first chunk was claimed."""
    return round(rows / running_s, 2) if running_s else None


def finished_rows(ledger: dict[str, Any]) -> int:
    """Rows that a ledger counts, whatever their outcome."""
    return sum(ledger[outcome] for outcome in Outcome)


def job_standing(connection: Connection, job_id: int) -> dict[str, Any]:
    """Everything about one job.

    :raises UsageError: for a job that does not exist; names those that do.
    """
    job = queries.job_by_id(connection, job_id=job_id)
    if job is None:
        raise unknown_job(connection, job_id)
    ledger = queries.job_ledger(connection, job_id=job_id)
    rejects = {row["code"]: row["rejected"] for row in queries.rejects_by_code(connection, corpus_id=job["corpus_id"])}
    return {
        **job,
        "ledger": ledger,
        "balanced": ledger["balanced"],
        "reasons": [row for row in queries.rows_by_reason(connection, job_id=job_id) if row["reason_code"]],
        "chunks": {row["state"]: row["chunks"] for row in queries.chunks_by_state(connection, job_id=job_id)},
        "chunk_errors": list(queries.chunk_errors(connection, job_id=job_id, batch=SHOWN_CHUNK_ERRORS)),
        "rejects": rejects,
        "retried": queries.count_history(connection, job_id=job_id),
        "warnings": [],
        "rows_per_s": rows_per_s(finished_rows(ledger), job["running_s"]),
    }


def job_lines(connection: Connection, *, live_only: bool, limit: int) -> list[dict[str, Any]]:
    """Jobs newest first, each with its counts: frozen ones of finished jobs, the ledger's of the others."""
    jobs = list(queries.list_jobs(connection, live_only=live_only, batch=limit))
    for job in jobs:
        counts = job.pop("final_counts")
        # The ledger counts every row of a job; a finished job's counts were frozen so that it need not.
        ledger = queries.job_ledger(connection, job_id=job["id"]) if counts is None else {**counts, "pending": 0}
        job["counts"] = {name: ledger[name] for name in ("pending", *Outcome)}
        job["rows_per_s"] = rows_per_s(finished_rows(ledger), job["running_s"])
    return jobs
