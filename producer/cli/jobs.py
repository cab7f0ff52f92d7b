"""``producer jobs``: every job, a line each."""

from typing import Annotated, Any

import typer

from producer.cli.output import JsonFlag, console, print_json, say, table
from producer.standing import finished_rows, job_lines
from schemas.database import connect
from schemas.outcomes import Outcome
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


def show_jobs(jobs: list[dict[str, Any]]) -> None:
    """A table of jobs on stdout."""
    columns = ("job", "state", "corpus", "label spec", "model", "rows", "ok", "not ok", "rows/s", "created")
    lines = table(*columns, folded=("corpus", "model"))
    for job in jobs:
        counts = job["counts"]
        rows = finished_rows(counts)
        lines.add_row(
            str(job["id"]),
            job["state"],
            job["corpus"],
            f"{job['label_spec']}_v{job['version']}",
            job["model"],
            f"{rows:,}/{job['total']:,}",
            f"{counts[Outcome.OK]:,}",
            f"{rows - counts[Outcome.OK]:,}",
            "-" if job["rows_per_s"] is None else f"{job['rows_per_s']:,.1f}",
            f"{job['created_at']:%m-%d %H:%M}",
        )
    console().print(lines)


@app.command(epilog="Example: producer jobs --limit 5")
def jobs(
    limit: Annotated[int, typer.Option(min=1, help="Jobs to show.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List all jobs, the newest first."""
    with connect(load_settings(), "producer jobs") as connection:
        found = job_lines(connection, live_only=False, limit=limit)
    if as_json:
        print_json({"jobs": found})
    elif found:
        show_jobs(found)
    else:
        say("No job yet: start one with `producer enqueue`.")
