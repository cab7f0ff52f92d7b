"""``producer resume``: let a paused job go on."""

import typer

from producer.cli.bars import progress_bar
from producer.cli.options import JobArgument
from producer.cli.output import JsonFlag, counted, print_json, say
from producer.control import require_job, resume_job
from producer.publish import publish_after
from schemas.database import connect, require_migrated
from schemas.queue import create_app
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer resume 1")
def resume(job: JobArgument, as_json: JsonFlag = False) -> None:
    """Let a paused job go on, whoever paused it, and publish messages for the chunks that wait."""
    settings = load_settings()
    with connect(settings, "producer resume") as connection, create_app(settings) as broker:
        require_migrated(connection)
        before = resume_job(connection, job)
        with progress_bar(not as_json) as progress:
            published = publish_after(f"job {job} may go on", connection, broker, settings, before["model"], progress)
        state = require_job(connection, job)["state"]
    was_paused = before["state"] == "paused"
    if as_json:
        reason = before["state_reason"] if was_paused else None
        print_json({"job_id": job, "state": state, "was_paused": was_paused, "reason": reason, "published": published})
        return
    if was_paused:
        say(f"Job {job} goes on; it was paused: {' '.join((before['state_reason'] or 'nobody said why').split())}")
    else:
        say(f"Job {job} is not paused: it is {state}")
    if published:
        say(f"  {counted(published, 'message')} published")
