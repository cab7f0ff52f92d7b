"""Where a job stands: its ledger, rows by reason, chunks by state, all read from Postgres."""

from typing import Any

from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.outcomes import Outcome

#: Chunks with an error that are shown: the latest attempts say enough.
SHOWN_CHUNK_ERRORS = 5
#: Rows that a job's tokens are told by: to read all would take too long for a glance.
FIGURE_ROWS = 500
#: States that a job does not leave.
ENDED = ("done", "cancelled")
#: Jobs named when one is not found.
SHOWN_JOBS = 10


def unknown_job(connection: Connection, job_id: int) -> UsageError:
    """The error for a job that does not exist, with those that do."""
    known = [str(row["id"]) for row in queries.list_jobs(connection, live_only=False, previews=True, batch=SHOWN_JOBS)]
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
    """Rows a second of a job's run, from its first claim on; None where there is none to tell of."""
    return round(rows / running_s, 2) if rows and running_s else None


def labelled_in_run(connection: Connection, job_id: int, ledger: dict[str, Any]) -> int:
    """Rows of a job's newest run that the engine had part in: rejecting and cancelling are no measure of its speed."""
    labelled: int = sum(ledger[outcome] for outcome in Outcome if outcome not in (Outcome.REJECTED, Outcome.CANCELLED))
    return labelled - int(queries.labelled_before(connection, job_id=job_id))


def finished_rows(ledger: dict[str, Any]) -> int:
    """Rows that a ledger counts, whatever their outcome."""
    return sum(ledger[outcome] for outcome in Outcome)


def job_standing(connection: Connection, job_id: int, *, audit: bool = False) -> dict[str, Any]:
    """Everything about one job.

    :param audit: count every row anew, also of chunks that are finished and whose counts were frozen then.
    :raises UsageError: for a job that does not exist; names those that do.
    """
    job = queries.job_by_id(connection, job_id=job_id)
    if job is None:
        raise unknown_job(connection, job_id)
    ledger = _audited(connection, job_id) if audit else _ledgers(connection, [job_id])[job_id]
    rejects = {row["code"]: row["rejected"] for row in queries.rejects_by_code(connection, corpus_id=job["corpus_id"])}
    return {
        **job,
        "forecast": queries.forecast_of(connection, job_id=job_id),
        "took": _took(connection, job, ledger),
        "ledger": ledger,
        "balanced": ledger["balanced"],
        "reasons": list(queries.reasons_of_job(connection, job_id=job_id)),
        "chunks": {row["state"]: row["chunks"] for row in queries.chunks_by_state(connection, job_id=job_id)},
        "chunk_errors": list(queries.chunk_errors(connection, job_id=job_id, batch=SHOWN_CHUNK_ERRORS)),
        "rejects": rejects,
        "retried": queries.count_history(connection, job_id=job_id),
        "warnings": [],
        "rows_per_s": rows_per_s(labelled_in_run(connection, job_id, ledger), job["running_s"]),
    }


def newest_job(connection: Connection) -> int:
    """The id of the job that was made last, previews aside.

    :raises UsageError: there is none.
    """
    found = list(queries.list_jobs(connection, live_only=False, previews=False, batch=1))
    if not found:
        raise UsageError("there is no job yet: start one with `producer enqueue`")
    return int(found[0]["id"])


def job_lines(connection: Connection, *, live_only: bool, previews: bool, limit: int) -> list[dict[str, Any]]:
    """Jobs newest first, each with its counts: frozen ones of finished jobs, the ledger's of the others.

    :param previews: with those of `producer preview --run`.
    """
    jobs = list(queries.list_jobs(connection, live_only=live_only, previews=previews, batch=limit))
    ledgers = _ledgers(connection, [job["id"] for job in jobs if job["final_counts"] is None])
    for job in jobs:
        counts = job.pop("final_counts")
        ledger = ledgers[job["id"]] if counts is None else {**counts, "pending": 0}
        job["counts"] = {name: ledger[name] for name in ("pending", *Outcome)}
    return jobs


def _ledgers(connection: Connection, job_ids: list[int]) -> dict[int, dict[str, Any]]:
    return {row.pop("job_id"): row for row in queries.counts_of_jobs(connection, job_ids=job_ids)}


def _audited(connection: Connection, job_id: int) -> dict[str, Any]:
    # Every row of a large job takes longer than a statement may.
    with connection.transaction():
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        ledger: dict[str, Any] = queries.job_ledger(connection, job_id=job_id)
    return ledger


def _took(connection: Connection, job: dict[str, Any], ledger: dict[str, Any]) -> dict[str, float] | None:
    """Tokens of the whole job, from those of some of its rows: to be held against its forecast. None before any."""
    prompted = job["total"] - ledger[Outcome.REJECTED] - ledger[Outcome.CANCELLED]
    rows = queries.token_figures(connection, job_id=job["id"], batch=FIGURE_ROWS)
    if not rows["rows"]:
        return None
    return {name: round(prompted * rows[name]) for name in ("prompt_tokens", "output_tokens")}
