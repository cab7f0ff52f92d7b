"""``producer pause``: hold a job back."""

import typer

from producer.cli.options import JobArgument
from producer.cli.output import JsonFlag, counted, print_json, say
from producer.control import pause_job, require_job
from producer.submitter import submitter
from schemas.database import connect, queries, require_migrated
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer pause 1")
def pause(job: JobArgument, as_json: JsonFlag = False) -> None:
    """Pause a job: no chunk of it is claimed until `producer resume`; chunks in work are finished."""
    with connect(load_settings(), "producer pause") as connection:
        require_migrated(connection)
        is_new = pause_job(connection, job, f"asked for by {submitter()}")
        reason = require_job(connection, job)["state_reason"]
        held = queries.chunks_held(connection, job_id=job)
    if as_json:
        print_json(
            {
                "job_id": job,
                "state": "paused",
                "state_reason": reason,
                "chunks_held": held["chunks"],
                "documents_held": held["documents"],
            }
        )
        return
    say(f"Job {job} is paused" if is_new else f"Job {job} was paused before ({reason})")
    if held["chunks"]:
        documents = counted(held["documents"], "document")
        say(f"  {counted(held['chunks'], 'chunk')} in work will be finished: rows of up to {documents} still come")
    say(f"Next: producer resume {job}")
