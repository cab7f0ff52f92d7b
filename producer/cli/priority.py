"""``producer priority``: which job goes first."""

from typing import Annotated

import typer

from producer.cli.options import MAX_PRIORITY, JobArgument, priority_number
from producer.cli.output import JsonFlag, print_json, say
from producer.control import set_priority
from schemas.database import connect, require_migrated
from schemas.settings import load_settings

app = typer.Typer(add_completion=False)


# A negative number looks like an option.
@app.command(epilog="Example: producer priority 1 10", context_settings={"ignore_unknown_options": True})
def priority(
    job: JobArgument,
    number: Annotated[
        int,
        typer.Argument(
            parser=priority_number,
            metavar="N",
            help=f"From -{MAX_PRIORITY} to {MAX_PRIORITY}. A job starts with 0.",
            show_default=False,
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Set a job's priority: of the jobs for a model, chunks of the one with the highest are labelled first.

    It holds at once for all chunks that wait. Others get GLEANER_FAIR_SHARE of the claims, the oldest job first.
    """
    with connect(load_settings(), "producer priority") as connection:
        require_migrated(connection)
        before = set_priority(connection, job, number)
    if as_json:
        print_json({"job_id": job, "priority": number, "before": before})
    else:
        say(f"Job {job} has priority {number}" + ("" if before == number else f"; it was {before}"))
