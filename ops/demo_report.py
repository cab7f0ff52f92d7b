"""What the demo shows when its job is done: labelled rows, rejects, speed."""

import psycopg
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Rows with outcome ``ok`` to show: enough to see what a label looks like, and the rest fits the screen.
OK_ROWS = 10
#: Characters of the widest cell, so that each table fits 100 columns.
CELL_CHARS = 50
#: Characters of a document id or of a record's excerpt in a cell.
SHORT_CELL_CHARS = 22
#: Characters of an id, a domain and a quantity where `claims_power_law` and flags are to fit beside them.
LABEL_CELL_CHARS = 17

#: The rows of a job that hold no label, over the view that analysts read.
_NOT_OK = """
    SELECT document_id, outcome, reason_code, reason
      FROM labels.papers WHERE job_id = %(job)s AND outcome <> 'ok' ORDER BY document_id
"""
#: Some of the labels; first those of documents that were changed so that Postgres could take them.
_OK = """
    SELECT document_id, scaling_domain, quantity_scaled, claims_power_law, array_to_string(document_flags, ', ')
      FROM labels.papers WHERE job_id = %(job)s AND outcome = 'ok'
     ORDER BY document_flags = '{}', document_id LIMIT %(ok_rows)s
"""
#: Input records of the job's corpus that could not become documents.
_REJECTS = """
    SELECT r.line, r.code, r.reason, r.excerpt
      FROM gleaner.corpus_rejects r JOIN gleaner.jobs j USING (corpus_id)
     WHERE j.id = %(job)s ORDER BY r.position
"""
#: Rows of the job and the seconds between its start and its end.
_SPEED = """
    SELECT total, extract(epoch FROM finished_at - started_at)::float8 FROM gleaner.jobs WHERE id = %(job)s
"""


def print_report(console: Console, job: int, *, analyst_url: str, owner_url: str, with_speed: bool) -> None:
    """Print the tables of a finished job of label schema ``papers``.

    :param analyst_url: Postgres as the read-only role, for the typed view: what an analyst would see.
    :param owner_url: Postgres as the owner, for rejects and times, which analysts have no view of.
    :param with_speed: whether to end with the job's speed, as `producer status` has it: rows by the time from
        the first claim to the end, which says nothing of a job that was interrupted.
    :raises psycopg.Error: the database is gone, or the view is missing.
    """
    with psycopg.connect(analyst_url) as connection:
        not_ok = connection.execute(_NOT_OK, {"job": job}).fetchall()
        ok = connection.execute(_OK, {"job": job, "ok_rows": OK_ROWS}).fetchall()
    with psycopg.connect(owner_url) as connection:
        rejects = connection.execute(_REJECTS, {"job": job}).fetchall()
        speed = connection.execute(_SPEED, {"job": job}).fetchone()

    labels = _table(
        "Some rows of the view labels.papers",
        ["document_id", "scaling_domain", "quantity_scaled", "claims_power_law", "document_flags"],
    )
    for document, domain, quantity, power_law, flags in ok:
        labels.add_row(
            _cut(document, LABEL_CELL_CHARS),
            _cut(domain, LABEL_CELL_CHARS),
            _cut(quantity, LABEL_CELL_CHARS),
            "true" if power_law else "false",
            flags,
        )
    console.print(labels)
    if not_ok:
        unlabelled = _table("Every row that is not ok", ["document_id", "outcome", "reason_code", "reason"])
        for document, outcome, code, reason in not_ok:
            unlabelled.add_row(_cut(document, SHORT_CELL_CHARS), outcome, code, _cut(reason, CELL_CHARS))
        console.print(unlabelled)
    if rejects:
        refused = _table(
            "Records of the corpus that could not become documents", ["line", "reason_code", "reason", "excerpt"]
        )
        for line, code, reason, excerpt in rejects:
            refused.add_row(str(line), code, _cut(reason, CELL_CHARS), _cut(excerpt, SHORT_CELL_CHARS))
        console.print(refused)
    if with_speed and speed and speed[1]:
        total, seconds = speed
        console.print(f"{total:,} documents in {seconds:.2f} s: {total / seconds:,.1f} documents per second.")


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _cut(text: str | None, chars: int) -> Text:
    """One line of at most ``chars`` characters, with nothing that rich or a terminal would act on."""
    line = "".join(c if c.isprintable() else " " for c in " ".join((text or "").split()))
    return Text(line if len(line) <= chars else line[: chars - 1] + "…")
