"""``producer retry``: try rows of a job again that did not come out well."""

from typing import Annotated

import typer

from producer.cli.bars import progress_bar
from producer.cli.options import ChunkSizeOption, JobArgument, settings_with
from producer.cli.output import JsonFlag, counted, print_json, say
from producer.control import require_job
from producer.publish import publish_after
from producer.retry import retry_rows
from schemas.database import connect, queries, require_migrated
from schemas.errors import UsageError
from schemas.outcomes import Outcome, Reason
from schemas.queue import create_app

#: What may be tried again: a row that is `ok` has its label.
OUTCOMES = [outcome for outcome in Outcome if outcome != Outcome.OK]

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer retry 1 --outcome failed,invalid,truncated")
def retry(
    job: JobArgument,
    outcome: Annotated[
        str,
        typer.Option(
            metavar="OUTCOME[,OUTCOME]", help=f"Rows with these outcomes, of {', '.join(OUTCOMES)}.", show_default=False
        ),
    ],
    chunk_size: ChunkSizeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Try rows of a job again that has ended: only those, in new chunks. What they were is kept as history.

    The label spec stays the job's; a changed label schema is a new job: `producer enqueue`.
    """
    outcomes = _outcomes(outcome)
    settings = settings_with(chunk_size=chunk_size)
    published = 0
    with connect(settings, "producer retry") as connection, create_app(settings) as broker:
        require_migrated(connection)
        reasons = queries.reasons_of_job(connection, job_id=job)
        over_long = sum(each["rows"] for each in reasons if each["reason_code"] == Reason.OVER_LONG)
        rows = retry_rows(connection, job, outcomes, settings.chunk_size)
        model = require_job(connection, job)["model"]
        if rows:
            done = f"{counted(rows, 'row')} of job {job} will be tried again"
            with progress_bar(not as_json) as progress:
                published = publish_after(done, connection, broker, settings, model, progress)
        state = require_job(connection, job)["state"]
    same = over_long if rows and Outcome.REJECTED in outcomes else 0
    if as_json:
        print_json({"job_id": job, "state": state, "rows": rows, "published": published, "over_long": same})
    elif rows:
        say(f"Job {job}: {counted(rows, 'row')} ({', '.join(outcomes)}) will be tried again")
        say("  what they were is kept in gleaner.label_history")
        if same:
            say(
                f"Warning: {counted(same, 'row')} over_long: they will be again unless workers have more context "
                "(GLEANER_MAX_MODEL_LEN). `producer enqueue --over-long truncate-tail` is a new job that cuts them"
            )
        say(f"Next: producer watch {job}")
    else:
        say(f"Job {job} has no row that is {' or '.join(outcomes)}: it stays {state}")


def _outcomes(given: str) -> list[Outcome]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in OUTCOMES:
            why = "a row that is ok has its label" if name == Outcome.OK else f"{name!r} is no outcome"
            raise UsageError(f"--outcome: {why}; give some of {', '.join(OUTCOMES)}")
    if not names:
        raise UsageError(f"--outcome: give some of {', '.join(OUTCOMES)}")
    return [outcome for outcome in OUTCOMES if outcome in names]
