"""``producer cancel``: end a job now, with what is finished."""

import typer

from producer.cli.bars import progress_bar
from producer.cli.options import JobArgument
from producer.cli.output import JsonFlag, counted, duration, print_json, say
from producer.control import Cancellation, cancel_job
from producer.submitter import submitter
from schemas.database import connect, queries, require_migrated
from schemas.outcomes import Outcome
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer cancel 1")
def cancel(job: JobArgument, as_json: JsonFlag = False) -> None:
    """Cancel a job: finished rows stay, requests in work are aborted, every other document gets the row `cancelled`.

    May be repeated at any time. Where a worker does not answer, the reconciler ends the job.
    """
    with connect(load_settings(), "producer cancel") as connection:
        require_migrated(connection)
        with progress_bar(not as_json) as progress:
            done = cancel_job(connection, job, submitter(), progress)
        ledger = queries.job_ledger(connection, job_id=job)
    if as_json:
        counts = {name: ledger[name] for name in ("total", "pending", *Outcome)}
        held = {"chunks_held": done.held, "held_until": done.held_until}
        print_json({"job_id": job, "state": done.state, "chunks_cancelled": done.closed, **held, "counts": counts})
        return
    say(_words(job, done))
    say("  " + ", ".join(f"{ledger[name]:,} {name}" for name in ("pending", *Outcome) if ledger[name]))


def _words(job: int, done: Cancellation) -> str:
    if done.before:
        return f"Job {job} was cancelled before"
    if done.state == "done":
        return f"Job {job} is done: its last chunk was finished first"
    if done.state == "cancelled":
        return f"Job {job} is cancelled: {counted(done.closed, 'chunk')} closed"
    leases = "" if done.lease_s is None else f", under leases that run out in {duration(done.lease_s)}"
    return (
        f"Job {job} is being cancelled: {counted(done.closed, 'chunk')} closed, "
        f"workers still hold {done.held:,}{leases}. The reconciler, or `producer cancel {job}` again, closes them then."
    )
