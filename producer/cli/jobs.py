"""``producer jobs``: every job, a line each."""

from typing import Annotated, Any

import typer

from producer.cli.output import JsonFlag, print_json, say
from producer.cli.tables import output_width, show_table
from producer.standing import ENDED, finished_rows, job_lines, state_note
from schemas.database import connect
from schemas.outcomes import Outcome
from schemas.settings import load_settings

#: Columns from which on a job's line has room for everything.
WIDE = 120

#: Jobs shown at most: a table of more serves nobody.
MAX_JOBS = 100_000

app = typer.Typer(add_completion=False)


def show_jobs(jobs: list[dict[str, Any]]) -> None:
    """A table of jobs on stdout; where it is narrow, without what `producer status JOB` shows as well."""
    wide = output_width() >= WIDE
    ranked = any(job["priority"] for job in jobs)
    columns = ["job", "state", "corpus", "label spec", "model", "rows", "not ok"]
    columns += (["priority"] if ranked else []) + (["ok", "created"] if wide else [])
    rows = []
    for job in jobs:
        counts = job["counts"]
        finished = finished_rows(counts)
        row = [
            str(job["id"]),
            job["state"],
            job["corpus"],
            f"{job['label_spec']}_v{job['version']}",
            job["model"],
            f"{finished:,}" if finished == job["total"] else f"{finished:,}/{job['total']:,}",
            f"{finished - counts[Outcome.OK]:,}",
        ]
        if ranked:
            row.append(str(job["priority"]))
        if wide:
            row += [f"{counts[Outcome.OK]:,}", f"{job['created_at']:%m-%d %H:%M}"]
        rows.append(row)
    show_table(columns, rows, cut=("corpus", "label spec", "model"))
    for job in jobs:
        standing = state_note(job["id"], job["state"], job["state_reason"])
        if standing is not None and job["state"] not in ENDED:
            say(standing)


@app.command(epilog="Example: producer jobs --limit 5")
def jobs(
    limit: Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Jobs to show.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Also those that `producer preview --run` made.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List all jobs, the newest first; previews aside."""
    with connect(load_settings(), "producer jobs") as connection:
        found = job_lines(connection, live_only=False, previews=everything, limit=limit)
    if as_json:
        print_json({"jobs": found})
    elif found:
        show_jobs(found)
    else:
        say("No job yet: start one with `producer enqueue`.")
