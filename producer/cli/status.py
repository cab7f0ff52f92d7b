"""``producer status``: the ledger of a job, or a line for each live job."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from producer.cli.jobs import show_jobs
from producer.cli.output import JsonFlag, counted, duration, print_json, say, whole_number
from producer.serving import unserved
from producer.standing import ENDED, finished_rows, job_lines, job_standing, state_note
from schemas.database import Connection, connect, queries
from schemas.errors import UsageError
from schemas.outcomes import Outcome
from schemas.settings import load_settings

#: Rejects fetched at a time.
REJECT_PAGE = 1000
#: Live jobs shown without a job id; `producer jobs` lists more.
SHOWN_JOBS = 50
#: What becomes of chunks in this state, for people.
QUARANTINED = "went wrong too often; each is tried alone at the engine, and halved until the document at fault is found"

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer status 1")
def status(
    job: Annotated[
        int | None,
        typer.Argument(parser=whole_number, metavar="JOB", help="Job id. Default: all live jobs.", show_default=False),
    ] = None,
    rejects: Annotated[
        bool, typer.Option("--rejects", help="List every record of the corpus that could not become a document.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Count every row anew, also those of chunks that are finished.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show where a job stands: total = pending + rows by outcome, or exit 1."""
    if job is None and (rejects or audit):
        raise UsageError(f"{'--rejects' if rejects else '--audit'} needs a job: producer status JOB")
    settings = load_settings()
    with connect(settings, "producer status") as connection:
        if job is None:
            _show_live(job_lines(connection, live_only=True, previews=True, limit=SHOWN_JOBS), as_json)
            return
        standing = job_standing(connection, job, audit=audit)
        if standing["state"] not in ENDED:
            warning = unserved(connection, settings, standing["model"])
            standing["warnings"] += [warning] if warning else []
        if as_json:
            listed = {"reject_list": list(_rejects(connection, standing["corpus_id"]))} if rejects else {}
            print_json({**standing, **listed})
        else:
            _show(standing)
            if rejects:
                for reject in _rejects(connection, standing["corpus_id"]):
                    source = f" of {reject['source']}" if reject["source"] else ""
                    say(f"  line {reject['line']}{source}: {reject['code']}: {reject['reason']}: {reject['excerpt']!r}")
    if not standing["balanced"]:
        raise typer.Exit(1)


def _show_live(jobs: list[dict[str, Any]], as_json: bool) -> None:
    totals = {name: sum(job["counts"][name] for job in jobs) for name in ("pending", *Outcome)}
    if as_json:
        print_json({"jobs": jobs, "totals": totals})
    elif jobs:
        show_jobs(jobs)
        say(f"{counted(len(jobs), 'live job')}: {totals['pending']:,} pending, {finished_rows(totals):,} done")
    else:
        say("No live job. `producer jobs` lists those that are finished.")


def _rejects(connection: Connection, corpus_id: int) -> Iterator[dict[str, Any]]:
    after = -1
    while page := list(queries.list_rejects(connection, corpus_id=corpus_id, after=after, batch=REJECT_PAGE)):
        yield from page
        after = page[-1]["position"]


def _show_forecast(job: dict[str, Any]) -> None:
    """What was expected, and what it is so far: seconds of a job that runs are those of its rows at their rate."""
    expected, took = job["forecast"], job["took"]
    if not expected:
        return
    seconds = "unknown time" if expected["seconds"] is None else duration(expected["seconds"])
    cost = "" if expected["cost"] is None else f", cost {expected['cost']:,.2f}"
    prompt, output = (
        f"{expected[f'{kind}_tokens']:,} (± {expected[f'{kind}_spread']:.0%}) {kind}" for kind in ("prompt", "output")
    )
    say(f"  forecast    {seconds}{cost}, {prompt} + {output} tokens; {expected['basis']['rate']}")
    if took is None or not job["rows_per_s"] or job["retried"]:  # a run for some rows is not what was expected
        return
    ended = job["state"] in ENDED
    tokens = f"about {took['prompt_tokens']:,} prompt + {took['output_tokens']:,} output tokens"
    time = duration(job["running_s"] if ended else job["total"] / job["rows_per_s"])
    say(f"  {'it took' if ended else 'it will be'}".ljust(14) + f"{time}, {tokens}")


def _run(job: dict[str, Any]) -> str:
    """How long the newest run of a job has taken. Nobody keeps count of the time in which no worker was there."""
    if job["running_s"] is None:
        return "not yet: waiting for a worker" if job["state"] == "queued" else "not yet"
    speed = "no label yet" if job["rows_per_s"] is None else f"{job['rows_per_s']:,.1f} documents/s"
    if job["rows_per_s"] is None and job["state"] in ENDED:
        speed = "nothing labelled"
    return f"{duration(job['running_s'])} since the first claim, {speed}"


def _show(job: dict[str, Any]) -> None:
    ledger = job["ledger"]
    say(f"Job {job['id']}: {job['state']}")
    if standing := state_note(job["id"], job["state"], job["state_reason"]):
        say(f"  {standing}")
    say(f"  corpus      {job['corpus']} ({counted(job['document_count'], 'document')}; {job['uri']})")
    say(f"  label spec  {job['label_spec']}_v{job['version']} (view labels.{job['label_spec']}_v{job['version']})")
    say(f"  model       {job['model']}")
    if job["priority"]:
        say(f"  priority    {job['priority']}")
    say(f"  submitted   {job['created_at']:%Y-%m-%d %H:%M} by {job['submitted_by']}")
    say(f"  {'last run' if job['retried'] else 'running'}".ljust(14) + _run(job))
    _show_forecast(job)
    parts = " + ".join(f"{ledger[name]:,} {name}" for name in ("pending", *Outcome))
    say(f"Ledger: {ledger['total']:,} total = {parts}: {'balanced' if ledger['balanced'] else 'NOT BALANCED'}")
    if not ledger["balanced"]:
        say("  Rows are missing from finished chunks or lie outside of the job's chunks: this must never happen.")
    for row in job["reasons"]:
        say(f"  {row['outcome']}: {row['rows']:,} {row['reason_code']}")
    if job["retried"]:
        say(f"Tried again: {counted(job['retried'], 'row')}; what they were is in gleaner.label_history")
    say("Chunks: " + ", ".join(f"{count:,} {state}" for state, count in job["chunks"].items()))
    if job["chunks"].get("quarantined"):
        say(f"  quarantined: {QUARANTINED}")
    for chunk in job["chunk_errors"]:
        where = f"chunk {chunk['chunk_no']} ({chunk['state']}, attempt {chunk['attempt']})"
        say(f"  {where}; last time: {chunk['last_error']}")
    for warning in job["warnings"]:
        say(f"Warning: {warning}")
    if job["rejects"]:
        codes = ", ".join(f"{count:,} {code}" for code, count in job["rejects"].items())
        say(f"Records rejected when the corpus was loaded: {codes}")
